package agent

import (
	"encoding/binary"
	"io"
)

// Coalesce makes one write of the two that yamux makes of each data frame, its header and then its body. In a sandbox
// every write to the bridge wakes the other side, and a wake is most of what a small call costs. Frames of other types
// pass as they are. One goroutine writes at a time, as yamux does.
func Coalesce(rwc io.ReadWriteCloser) io.ReadWriteCloser {
	return &coalesced{ReadWriteCloser: rwc}
}

const (
	yamuxHeader = 12 // version, type, 2 bytes of flags, 4 of stream, 4 of length
	yamuxData   = 0  // the one type that a body follows
	// coalesceMost is how much body is copied to stand behind its header; a longer one is worth a write of its own.
	coalesceMost = 16 << 10
)

type coalesced struct {
	io.ReadWriteCloser
	buf  []byte
	body uint32 // length of the body whose header waits in buf; 0: none waits
}

func (c *coalesced) Write(p []byte) (int, error) {
	if c.body == 0 {
		if len(p) == yamuxHeader && p[1] == yamuxData {
			if n := binary.BigEndian.Uint32(p[8:]); n > 0 && n <= coalesceMost {
				c.body, c.buf = n, append(c.buf[:0], p...)
				return len(p), nil
			}
		}
		return c.ReadWriteCloser.Write(p)
	}
	head := len(c.buf)
	c.body = 0
	n, err := c.ReadWriteCloser.Write(append(c.buf, p...))
	return max(n-head, 0), err
}
