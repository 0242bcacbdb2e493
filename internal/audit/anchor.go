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
	"strconv"
	"strings"

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
	line := make([]byte, anchorLen+1)
	n, err := io.ReadFull(f, line)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return Head{}, anchorMissing, fmt.Errorf("read anchor: %w", err)
	}
	if n == 0 { // made, and not written yet
		return Head{}, anchorMissing, nil
	}
	if n != anchorLen {
		return Head{}, anchorForged, nil
	}
	number, rest, _ := strings.Cut(string(line[:n]), " ")
	hash, mac, _ := strings.Cut(strings.TrimSuffix(rest, "\n"), " ")
	var h Head
	var sum []byte
	var errs [3]error
	h.Seq, errs[0] = strconv.ParseInt(number, 10, 64)
	h.Hash, errs[1] = hex.DecodeString(hash)
	sum, errs[2] = hex.DecodeString(mac)
	if errs != [3]error{} || !hmac.Equal(sum, a.mac(h)) {
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
