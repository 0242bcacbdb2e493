package wsconn

import (
	"strings"
	"sync/atomic"
)

// onceFlag tells the first caller from the others.
type onceFlag struct{ taken atomic.Bool }

func (o *onceFlag) first() bool { return o.taken.CompareAndSwap(false, true) }

// validUTF8 mends a reason that was cut in the middle of a character: a close frame with bad UTF-8 is a protocol error.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "") }
