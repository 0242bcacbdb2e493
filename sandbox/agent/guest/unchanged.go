package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// unchanged reports as fault.Conflict the first of some files that is not what it has to be.
func unchanged(list []agent.FileSum) error {
	for _, f := range list {
		if f.Size < 0 || f.Size > agent.MaxFileSumSize {
			return fault.Field("files", "are over %d bytes", agent.MaxFileSumSize)
		}
		real, err := realPlace(string(f.Path), true)
		if err != nil || real != string(f.Real) {
			return otherFile(f)
		}
		sum, size, err := digestOf(real, f.Size)
		if err != nil || size != f.Size || sum != f.SHA256 {
			return otherFile(f)
		}
	}
	return nil
}

func otherFile(f agent.FileSum) error {
	return fault.New(fault.Conflict, "%q is not what was approved any more; nothing was run.", f.Path).With("reason", "file_changed")
}

// digestOf reads a regular file, at most one byte more than most.
func digestOf(p string, most int64) (sum string, size int64, err error) {
	f, _, err := openRegular(p)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, io.LimitReader(f, most+1))
	return hex.EncodeToString(h.Sum(nil)), size, err
}
