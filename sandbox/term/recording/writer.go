package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

// ErrFull says that a recording is as large as it may be.
var ErrFull = errors.New("the recording is as large as one may be")

const (
	// flushAt is how much waits in memory at most before it is written, in bytes.
	flushAt = 64 << 10
	// maxMark bounds a marker's label, in characters.
	maxMark = 200
	// The comments that tell offsets. What is told once the line after a "# next N" is there reaches to N; from an "# at N" on
	// it goes on at N. Without one, the offset grows by the bytes of each "o".
	nextComment = "# next "
	atComment   = "# at "
)

// Start is what is known when a recording begins.
type Start struct {
	At         time.Time
	Cols, Rows int
	Offset     int64  // of the first byte of output
	Title      string // shown by players
	Max        int64  // bytes of the file; 0: no bound
	Secrets    []Secret
}

// Writer writes one recording. Its methods are for one goroutine, but for Size. An error leaves what was written before whole.
type Writer struct {
	f       *os.File
	max     int64
	last    time.Time // of the newest event
	written int64     // bytes in the file
	size    atomic.Int64
	buf     []byte
	json    bytes.Buffer
	enc     *json.Encoder
	cols    int
	rows    int
	out, in filter
	at      time.Time // of what is being taken
	told    int64     // offset that a reader of the file would find
}

func newWriter(f *os.File, max int64, secrets []Secret) (*Writer, error) {
	search, err := newSearch(secrets)
	if err != nil {
		return nil, err
	}
	w := &Writer{f: f, max: max, out: filter{search: search}, in: filter{search: search}}
	w.enc = json.NewEncoder(&w.json)
	w.enc.SetEscapeHTML(false)
	return w, nil
}

// header is the first line of an asciicast v3.
type header struct {
	Version   int        `json:"version"`
	Term      headerTerm `json:"term"`
	Timestamp int64      `json:"timestamp"`
	Title     string     `json:"title,omitempty"`
}

type headerTerm struct {
	Cols int    `json:"cols"`
	Rows int    `json:"rows"`
	Type string `json:"type"`
}

func (w *Writer) begin(s Start) error {
	line, err := json.Marshal(header{3, headerTerm{s.Cols, s.Rows, "xterm-256color"}, s.At.Unix(), s.Title})
	if err != nil {
		return err
	}
	w.buf = append(append(w.buf, line...), '\n')
	w.cols, w.rows, w.last = s.Cols, s.Rows, s.At
	if s.Offset > 0 {
		w.position(atComment, s.Offset)
	}
	w.out.restart(s.Offset)
	return w.flush()
}

// Size is how large the file is, with what still waits to be written. Safe for concurrent use.
func (w *Writer) Size() int64 { return w.size.Load() }

// Term is the terminal's size as it was told last.
func (w *Writer) Term() (cols, rows int) { return w.cols, w.rows }

// Next is the offset of the byte of output that has to come next. What was held back is forgotten: it has to come again.
func (w *Writer) Next() int64 {
	w.out.restart(w.out.raw)
	return w.out.raw
}

// Output takes what was printed from an offset on. A jump forward is told as a gap; what was told already is left out.
func (w *Writer) Output(at time.Time, off int64, p []byte) error {
	next := w.out.raw + int64(len(w.out.held))
	if off < next {
		seen := next - off
		if seen >= int64(len(p)) {
			return nil
		}
		p = p[seen:]
	}
	w.at = at
	if off > next {
		if err := w.Skip(at, off, fmt.Sprintf("gap: %d bytes were lost", off-next)); err != nil {
			return err
		}
	}
	return w.enough(w.out.write(p, w.print))
}

// enough tells, once all that was taken is accounted for, that there is no room for more.
func (w *Writer) enough(err error) error {
	if err == nil && w.max > 0 && w.size.Load() >= w.max {
		return errors.Join(w.flush(), ErrFull)
	}
	return err
}

// Skip goes on at another offset, forward or back, and says why.
func (w *Writer) Skip(at time.Time, off int64, why string) error {
	w.at = at
	err := w.out.end(w.print)
	if err == nil {
		w.position(nextComment, off)
		w.told = off
		err = w.event(at, "m", cleanMark(why))
	}
	w.out.restart(off)
	return err
}

// print writes one piece of text.
func (w *Writer) print(text []byte, end int64) error {
	if w.told+int64(len(text)) != end || !utf8.Valid(text) {
		w.position(nextComment, end)
	}
	w.told = end
	return w.event(w.at, "o", string(text))
}

// Resize tells another size; one that is the same is told once.
func (w *Writer) Resize(at time.Time, cols, rows int) error {
	if cols == w.cols && rows == w.rows {
		return nil
	}
	w.cols, w.rows = cols, rows
	return w.event(at, "r", fmt.Sprintf("%dx%d", cols, rows))
}

// Input takes what was typed.
func (w *Writer) Input(at time.Time, p []byte) error {
	return w.enough(w.in.write(p, func(text []byte, _ int64) error { return w.event(at, "i", string(text)) }))
}

// Mark writes a marker, which players show and jump to.
func (w *Writer) Mark(at time.Time, label string) error {
	var text []byte
	f := filter{search: w.out.search}
	keep := func(t []byte, _ int64) error { text = append(text, t...); return nil }
	_ = f.write([]byte(cleanMark(label)), keep)
	_ = f.end(keep)
	return w.event(at, "m", string(text))
}

// Exit says how the terminal ended, as a shell says it: 128 and the signal's number for one that was killed.
func (w *Writer) Exit(at time.Time, code int) error {
	w.at = at
	return errors.Join(w.finish(at), w.event(at, "x", strconv.Itoa(code)), w.flush())
}

// finish lets what is held go, because nothing more comes.
func (w *Writer) finish(at time.Time) error {
	w.at = at
	return errors.Join(
		w.in.end(func(text []byte, _ int64) error { return w.event(at, "i", string(text)) }),
		w.out.end(w.print),
	)
}

// End finishes a recording with a last marker, and closes it.
func (w *Writer) End(at time.Time, why string) error {
	err := w.finish(at)
	if why != "" {
		err = errors.Join(err, w.Mark(at, why))
	}
	return errors.Join(err, w.Close())
}

// Close writes and syncs what waits, and closes the file. The recording can be resumed.
func (w *Writer) Close() error { return errors.Join(w.flush(), w.f.Sync(), w.f.Close()) }

func (w *Writer) position(comment string, off int64) {
	w.buf = append(w.buf, comment...)
	w.buf = strconv.AppendInt(w.buf, off, 10)
	w.buf = append(w.buf, '\n')
}

// event appends one. Times never go back, and rounding does not add up: the interval is counted from what was told before.
func (w *Writer) event(at time.Time, code, data string) error {
	step := max(0, at.Sub(w.last)).Round(time.Microsecond)
	w.last = w.last.Add(step)
	w.json.Reset()
	if err := w.enc.Encode(data); err != nil {
		return err
	}
	text := bytes.TrimSuffix(w.json.Bytes(), []byte("\n"))
	w.buf = append(w.buf, '[')
	w.buf = strconv.AppendFloat(w.buf, step.Seconds(), 'f', 6, 64)
	w.buf = append(w.buf, ", \""...)
	w.buf = append(w.buf, code...)
	w.buf = append(w.buf, "\", "...)
	w.buf = append(w.buf, text...)
	w.buf = append(w.buf, "]\n"...)
	w.size.Store(w.written + int64(len(w.buf)))
	if len(w.buf) >= flushAt {
		return w.flush()
	}
	return nil
}

// Flush gives what waits to the kernel: it outlives this process. ErrFull once the file is as large as it may be.
func (w *Writer) Flush() error { return w.enough(w.flush()) }

func (w *Writer) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	n, err := w.f.WriteAt(w.buf, w.written)
	if err != nil {
		// A line that was written in part must not stand before another.
		return errors.Join(fmt.Errorf("write a recording: %d of %d bytes: %w", n, len(w.buf), err), w.f.Truncate(w.written))
	}
	w.written += int64(n)
	w.size.Store(w.written)
	w.buf = w.buf[:0]
	return nil
}

// Sync gives what was flushed to the disk: it outlives the host.
func (w *Writer) Sync() error { return w.f.Sync() }

// cleanMark makes one line of plain text of a label.
func cleanMark(label string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return ' '
		case unicode.Is(unicode.Cf, r): // bidi controls, and what cannot be seen
			return -1
		}
		return r
	}, strings.ToValidUTF8(label, "\uFFFD"))
	if r := []rune(clean); len(r) > maxMark {
		clean = string(r[:maxMark]) + "…"
	}
	return clean
}
