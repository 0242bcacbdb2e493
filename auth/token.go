package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"hash/crc32"
	"strings"
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// randomBase62 gives n random characters; 248 = 4*62, larger bytes would favour the first ones.
func randomBase62(n int) string {
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		_, _ = rand.Read(buf[:]) // never fails since Go 1.24
		for _, b := range buf {
			if b < 248 && len(out) < n {
				out = append(out, base62[int(b)%62])
			}
		}
	}
	return string(out)
}

// NewToken makes the secret of a link: 43 characters, 256 bits.
func NewToken() string { return randomBase62(43) }

// HashSecret gives what is kept of a token or key. A plain hash is enough: they carry over 200 random bits.
func HashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// SecretMatches compares a secret with the hash that was kept, in constant time.
func SecretMatches(secret string, hash []byte) bool {
	return subtle.ConstantTimeCompare(HashSecret(secret), hash) == 1
}

// Shape of a key: "sg_", 8 characters that find it, "_", 37 random characters (220 bits) and 6 of checksum. The checksum
// lets a scanner of leaked secrets, and us, tell a key from a mistyped one without a look into the database.
const (
	keyPrefixLen = len("sg_") + 8
	keyRandomLen = 37
	keySumLen    = 6
	keyLen       = keyPrefixLen + len("_") + keyRandomLen + keySumLen
)

// NewKeySecret makes an API key and the prefix by which it is found and recognised.
func NewKeySecret() (secret, prefix string) {
	prefix = "sg_" + randomBase62(8)
	body := prefix + "_" + randomBase62(keyRandomLen)
	return body + keyChecksum(body), prefix
}

// KeyPrefix gives the prefix of something that has the shape and the checksum of a key.
func KeyPrefix(secret string) (prefix string, ok bool) {
	if len(secret) != keyLen || !strings.HasPrefix(secret, "sg_") || secret[keyPrefixLen] != '_' {
		return "", false
	}
	for i := len("sg_"); i < keyLen; i++ {
		if i != keyPrefixLen && strings.IndexByte(base62, secret[i]) < 0 {
			return "", false
		}
	}
	body := secret[:keyLen-keySumLen]
	if keyChecksum(body) != secret[keyLen-keySumLen:] {
		return "", false
	}
	return secret[:keyPrefixLen], true
}

// keyChecksum writes the CRC-32 of body in six characters.
func keyChecksum(body string) string {
	sum := crc32.ChecksumIEEE([]byte(body))
	var out [keySumLen]byte
	for i := keySumLen - 1; i >= 0; i-- {
		out[i] = base62[sum%62]
		sum /= 62
	}
	return string(out[:])
}
