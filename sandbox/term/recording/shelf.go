package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandgate/internal/fault"
)

const suffix = ".cast"

// maxLine bounds a line that is read back, in bytes: an event holds at most a flush's worth of text, each byte of it as six.
const maxLine = 8 << 20

// Shelf is a directory of recordings, each in a file of its own. Safe for concurrent use.
type Shelf struct{ dir string }

// Open makes the directory with mode 0700 where it is missing.
func Open(dir string) (*Shelf, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("recordings: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("recordings: %w", err)
	}
	return &Shelf{dir}, nil
}

func (s *Shelf) path(id string) (string, error) {
	if !ValidID(id) {
		return "", errMissing()
	}
	return filepath.Join(s.dir, id+suffix), nil
}

func errMissing() error { return fault.New(fault.NotFound, "Recording not found") }

// Create begins a recording; what it says of its start is in the file when it returns.
func (s *Shelf) Create(id string, start Start) (*Writer, error) {
	path, err := s.path(id)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("begin a recording: %w", err)
	}
	w, err := newWriter(f, start.Max, start.Secrets)
	if err == nil {
		w.told = start.Offset
		err = w.begin(start)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return w, nil
}

// Resume goes on with a recording whose writer ended without End, exactly where it was: a line that was written in part is
// dropped, and Next tells the offset that has to come. start gives when it began, the bound and the secrets.
func (s *Shelf) Resume(id string, start Start) (*Writer, error) {
	path, err := s.path(id)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errMissing()
	}
	if err != nil {
		return nil, fmt.Errorf("resume a recording: %w", err)
	}
	w, err := newWriter(f, start.Max, start.Secrets)
	if err == nil {
		var at place
		if at, err = survey(f); err == nil {
			w.cols, w.rows, w.told, w.written = at.cols, at.rows, at.offset, at.end
			w.last = start.At.Add(at.elapsed)
			w.out.restart(at.offset)
			w.size.Store(w.written)
			err = f.Truncate(at.end)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("resume a recording: %w", err), f.Close())
	}
	return w, nil
}

// place is where a recording stands.
type place struct {
	cols, rows int
	offset     int64 // of the next byte of output
	elapsed    time.Duration
	end        int64 // of the last whole line that counts
}

var errNoHeader = errors.New("there is no whole first line")

// survey reads a recording up to the last line that is whole and makes sense.
func survey(r io.Reader) (place, error) {
	var p place
	in := bufio.NewReaderSize(r, 64<<10)
	line, n, err := readLine(in)
	if err != nil {
		return p, errors.Join(errNoHeader, err)
	}
	var h header
	if err := json.Unmarshal(line, &h); err != nil || h.Version != 3 {
		return p, errors.Join(errNoHeader, err)
	}
	p.cols, p.rows, p.end = h.Term.Cols, h.Term.Rows, n
	at, next := n, int64(-1)
	for {
		line, n, err := readLine(in)
		if err != nil {
			return p, nil // its end, or the part of a line
		}
		at += n
		if text, ok := bytes.CutPrefix(line, []byte(nextComment)); ok {
			if next, err = strconv.ParseInt(string(text), 10, 64); err != nil || next < 0 {
				return p, nil
			}
			continue
		}
		if text, ok := bytes.CutPrefix(line, []byte(atComment)); ok {
			off, err := strconv.ParseInt(string(text), 10, 64)
			if err != nil || off < 0 {
				return p, nil
			}
			p.offset, p.end = off, at
			continue
		}
		step, code, data, ok := parseEvent(line)
		if !ok {
			return p, nil
		}
		p.elapsed += step
		switch {
		case next >= 0:
			p.offset = next
		case code == "o":
			p.offset += int64(len(data))
		}
		if code == "r" {
			_, _ = fmt.Sscanf(data, "%dx%d", &p.cols, &p.rows)
		}
		next, p.end = -1, at
	}
}

// readLine gives a whole line without its end, and how many bytes it took; an error for one that is not whole or too long.
func readLine(r *bufio.Reader) (line []byte, n int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return line[:len(line)-1], int64(len(line)), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > maxLine {
			return nil, 0, err
		}
	}
}

func parseEvent(line []byte) (step time.Duration, code, data string, ok bool) {
	var e []json.RawMessage
	if json.Unmarshal(line, &e) != nil || len(e) != 3 {
		return 0, "", "", false
	}
	var seconds float64
	if json.Unmarshal(e[0], &seconds) != nil || json.Unmarshal(e[1], &code) != nil || json.Unmarshal(e[2], &data) != nil || seconds < 0 {
		return 0, "", "", false
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Microsecond), code, data, true
}

// Reader is a recording to be read: whole lines only, also while it is written and after a crash.
type Reader struct {
	io.ReadSeeker
	Size     int64
	Modified time.Time
	f        *os.File
}

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }

// Read opens a recording.
func (s *Shelf) Read(id string) (*Reader, error) {
	path, err := s.path(id)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errMissing()
	}
	if err != nil {
		return nil, fmt.Errorf("read a recording: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		var size int64
		if size, err = wholeLines(f, info.Size()); err == nil {
			return &Reader{io.NewSectionReader(f, 0, size), size, info.ModTime(), f}, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("read a recording: %w", err), f.Close())
}

// wholeLines gives the size up to the last line's end. After a crash of the host the end of a file may be zeros.
func wholeLines(f io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for size > 0 {
		from := max(0, size-int64(len(buf)))
		p := buf[:size-from]
		if _, err := f.ReadAt(p, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.LastIndexByte(p, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		size = from
	}
	return 0, nil
}

// FileSize gives the bytes of a recording, and when it was written last.
func (s *Shelf) FileSize(id string) (int64, time.Time, error) {
	path, err := s.path(id)
	if err != nil {
		return 0, time.Time{}, err
	}
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, time.Time{}, errMissing()
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("look at a recording: %w", err)
	}
	return info.Size(), info.ModTime(), nil
}

// Remove deletes a recording; none: nil.
func (s *Shelf) Remove(id string) error {
	path, err := s.path(id)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete a recording: %w", err)
	}
	return nil
}

// IDs lists what is there.
func (s *Shelf) IDs() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	var out []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok && ValidID(id) {
			out = append(out, id)
		}
	}
	return out, nil
}
