package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	spoolMemory = 64 << 10 // bytes that a spool keeps in memory; what is longer goes to disk
	textChunk   = 32 << 10 // bytes of a text that are encoded at a time
)

// spool keeps a long text until it is sent. Many answers of 16 MiB may wait for their commands or clients at once, so
// only the beginning is in memory; the rest is in a file without a name, which no crash leaves behind. Not safe for
// concurrent use.
type spool struct {
	dir    string
	limit  int64 // bytes that are kept
	size   int64
	cut    bool // something came beyond the limit, or the disk took no more
	binary bool // it is not UTF-8
	tail   []byte
	head   []byte
	file   *os.File
}

// Write implements io.Writer and never fails: what cannot be kept is cut off.
func (s *spool) Write(p []byte) (int, error) {
	n := len(p)
	if room := s.limit - s.size; int64(len(p)) > room {
		p, s.cut = p[:max(0, room)], true
	}
	if len(p) == 0 {
		return n, nil
	}
	if s.file == nil && len(s.head)+len(p) <= spoolMemory {
		s.head = append(s.head, p...)
	} else if err := s.toDisk(p); err != nil {
		s.cut, s.limit = true, s.size
		return n, nil
	}
	s.size += int64(len(p))
	s.look(p)
	return n, nil
}

func (s *spool) toDisk(p []byte) error {
	if s.file == nil {
		f, err := unnamed(s.dir)
		if err != nil {
			return err
		}
		s.file = f
	}
	if _, err := s.file.WriteAt(p, s.size-int64(len(s.head))); err != nil {
		return fmt.Errorf("keep output: %w", err)
	}
	return nil
}

// look follows whether all of it is UTF-8; a character may come in two pieces.
func (s *spool) look(p []byte) {
	if s.binary {
		return
	}
	if len(s.tail) > 0 {
		// At most three bytes are open, so joining them with the next few settles them.
		joined := append(s.tail, p[:min(len(p), utf8.UTFMax)]...)
		_, width := utf8.DecodeRune(joined)
		switch {
		case !utf8.FullRune(joined):
			s.tail = joined
			return
		case width <= len(s.tail):
			s.binary = true
			return
		}
		p = p[width-len(s.tail):]
	}
	open := openTail(p)
	s.binary = !utf8.Valid(p[:len(p)-open])
	s.tail = append([]byte(nil), p[len(p)-open:]...)
}

// text reports whether all of it is UTF-8.
func (s *spool) text() bool { return !s.binary && len(s.tail) == 0 }

// reader gives what is kept, from the start.
func (s *spool) reader() io.Reader {
	head := bytes.NewReader(s.head)
	if s.file == nil {
		return head
	}
	return io.MultiReader(head, io.NewSectionReader(s.file, 0, s.size-int64(len(s.head))))
}

// close frees the file.
func (s *spool) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}

// unnamed opens a file that has no name in dir ("": the system's place for such).
func unnamed(dir string) (*os.File, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "spool"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("spool: %w", err)
	}
	f, err := os.CreateTemp(dir, ".spool-*")
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	_ = os.Remove(f.Name())
	return f, nil
}

// longText is one long field of a JSON object.
type longText struct {
	name   string
	from   *spool
	base64 bool
}

// writeLong writes an object of long texts and the fields of rest, a struct, without ever holding all of it.
func writeLong(w io.Writer, texts []longText, rest any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(rest); err != nil {
		return err
	}
	open := "{"
	for _, t := range texts {
		if _, err := io.WriteString(w, open+`"`+t.name+`":"`); err != nil {
			return err
		}
		if err := t.write(w); err != nil {
			return err
		}
		open = `",`
	}
	_, err := w.Write(append([]byte(open), b.Bytes()[1:]...))
	return err
}

func (t longText) write(w io.Writer) error {
	if t.base64 {
		enc := base64.NewEncoder(base64.StdEncoding, w)
		if _, err := io.CopyBuffer(struct{ io.Writer }{enc}, t.from.reader(), make([]byte, textChunk)); err != nil {
			return err
		}
		return enc.Close()
	}
	var out []byte
	// One byte more than there is, so that the end is seen at once.
	buf := make([]byte, min(textChunk, t.from.size+1))
	r, have := t.from.reader(), 0
	for {
		n, err := io.ReadFull(r, buf[have:])
		have += n
		end := err != nil
		if end && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		whole := have
		if !end {
			whole -= openTail(buf[:have]) // a character is not taken apart
		}
		out = appendEscaped(out[:0], buf[:whole])
		if _, err := w.Write(out); err != nil {
			return err
		}
		if end {
			return nil
		}
		have = copy(buf, buf[whole:have])
	}
}

// appendEscaped adds p as the inside of a JSON string, byte for byte as encoding/json does without its escapes for HTML.
func appendEscaped(dst, p []byte) []byte {
	const hex = "0123456789abcdef"
	for len(p) > 0 {
		switch c := p[0]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			if i := strings.IndexByte("\b\f\n\r\t", c); i >= 0 {
				dst = append(dst, '\\', "bfnrt"[i])
			} else {
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, width := utf8.DecodeRune(p)
			switch {
			case r == utf8.RuneError && width == 1:
				dst = append(dst, `\ufffd`...)
			case r == '\u2028' || r == '\u2029':
				dst = append(dst, '\\', 'u', '2', '0', '2', hex[r&15])
			default:
				dst = append(dst, p[:width]...)
			}
			p = p[width:]
			continue
		}
		p = p[1:]
	}
	return dst
}
