package audit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// anchor is a small file that says how far the chain had come, so that cutting its end shows. One line of fixed length:
// seq, hash, and an HMAC of both. A chain that is ahead of it is normal (a crash between both), one behind it is not.
type anchor struct {
	path string
	key  []byte
}

type anchorState int

const (
	anchorMissing anchorState = iota
	anchorGood
	anchorForged
)

const anchorFormat = "%020d %x %x\n"

var anchorLen = len(fmt.Sprintf(anchorFormat, 0, make([]byte, sha256.Size), make([]byte, sha256.Size)))

func (a anchor) read() (Head, anchorState, error) {
	f, err := os.Open(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return Head{}, anchorMissing, nil
	}
	if err != nil {
		return Head{}, anchorMissing, fmt.Errorf("read anchor: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	// The lock belongs to this opening of the file, so it keeps apart goroutines and processes alike.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return Head{}, anchorMissing, fmt.Errorf("lock anchor: %w", err)
	}
	return a.parse(f)
}

func (a anchor) parse(f io.Reader) (Head, anchorState, error) {
	line, err := io.ReadAll(io.LimitReader(f, int64(anchorLen)+1))
	if err != nil {
		return Head{}, anchorMissing, fmt.Errorf("read anchor: %w", err)
	}
	if len(line) == 0 { // made, and not written yet
		return Head{}, anchorMissing, nil
	}
	var h Head
	var hash, mac string
	if _, err := fmt.Sscanf(string(line), "%d %64s %64s\n", &h.Seq, &hash, &mac); err != nil || len(line) != anchorLen {
		return Head{}, anchorForged, nil
	}
	var err1, err2 error
	var sum []byte
	h.Hash, err1 = hex.DecodeString(hash)
	sum, err2 = hex.DecodeString(mac)
	if err1 != nil || err2 != nil || !hmac.Equal(sum, a.mac(h)) {
		return Head{}, anchorForged, nil
	}
	return h, anchorGood, nil
}

// advance moves the anchor forward, never back: another process may have been faster.
func (a anchor) advance(h Head) error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("write anchor: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	if err == nil {
		var now Head
		var state anchorState
		if now, state, err = a.parse(f); err == nil && (state != anchorGood || now.Seq < h.Seq) {
			_, err = f.WriteAt(fmt.Appendf(nil, anchorFormat, h.Seq, h.Hash, a.mac(h)), 0)
			if err == nil && state == anchorForged {
				err = f.Truncate(int64(anchorLen))
			}
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write anchor: %w", err)
	}
	return nil
}

func (a anchor) mac(h Head) []byte {
	mac := hmac.New(sha256.New, a.key)
	fmt.Fprintf(mac, "sandgate audit head 1 %d %x", h.Seq, h.Hash)
	return mac.Sum(nil)
}
