// Package seal owns the encryption of small secrets at rest: AES-256-GCM under a key that lives in a file beside the
// database. It must never keep, log or return a key, and what it sealed for one subject opens for no other.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// KeyLen is the length of a key, in bytes.
const KeyLen = 32

// Box seals and opens. Safe for concurrent use.
type Box struct {
	aead   cipher.AEAD
	digest []byte
}

// New makes a box of a key of KeyLen random bytes. Encryption and digests use keys of their own, derived from it.
func New(key []byte) (*Box, error) {
	if len(key) != KeyLen {
		return nil, fmt.Errorf("seal: the key has %d bytes, not %d", len(key), KeyLen)
	}
	enc, err := hkdf.Key(sha256.New, key, nil, "sandgate seal", KeyLen)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	digest, err := hkdf.Key(sha256.New, key, nil, "sandgate digest", KeyLen)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	block, err := aes.NewCipher(enc)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return &Box{aead: aead, digest: digest}, nil
}

// Seal encrypts plain for a subject.
func (b *Box) Seal(plain []byte, subject string) []byte {
	nonce := make([]byte, b.aead.NonceSize(), b.aead.NonceSize()+len(plain)+b.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails since Go 1.24
	return b.aead.Seal(nonce, nonce, plain, []byte(subject))
}

// Open gives what was sealed for the subject; an error when it was sealed for another, by another key, or is damaged.
func (b *Box) Open(sealed []byte, subject string) ([]byte, error) {
	n := b.aead.NonceSize()
	if len(sealed) < n {
		return nil, errors.New("seal: too short")
	}
	plain, err := b.aead.Open(nil, sealed[:n], sealed[n:], []byte(subject))
	if err != nil {
		return nil, errors.New("seal: cannot be opened: another key, another subject, or damaged")
	}
	return plain, nil
}

// Digest is a keyed digest of text that may hold secrets: without the key nobody can try guesses against it.
func (b *Box) Digest(p []byte) []byte {
	m := hmac.New(sha256.New, b.digest)
	m.Write(p)
	return m.Sum(nil)
}
