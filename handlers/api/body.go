package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
)

// Bounds of JSON bodies, in bytes.
const (
	smallBody  = 1 << 20
	filesBody  = 24 << 20 // 16 MiB of file in base64, and the rest of the object
	maxNesting = 16
	drainBody  = 64 << 20 // of a body that is too large: read away so that the answer is not lost in a reset
	drainTime  = time.Second
	bodyStep   = 16 << 10        // of a JSON body, within the patience
	bodyTime   = 5 * time.Minute // for all of a JSON body to arrive
)

// readObject reads the body as one JSON object of at most limit bytes; an empty body is an empty object. Duplicate keys,
// text after the object, bytes that are not UTF-8 and half surrogates are refused: two readers could see two things in them.
func readObject(c echo.Context, limit int64) (*object, error) {
	r := c.Request()
	if err := wantJSON(r); err != nil {
		return nil, err
	}
	if r.ContentLength > limit {
		return nil, tooLarge(c, limit)
	}
	p, err := io.ReadAll(io.LimitReader(patiently(c), limit+1))
	if err != nil {
		return nil, brokeOff(c, err)
	}
	if int64(len(p)) > limit {
		return nil, tooLarge(c, limit)
	}
	return parseObject(c, p)
}

// readLarge is readObject for bodies that carry a file or stdin. A long one is kept on disk until all of it is there, and
// then parsed in turn: parsing takes its length several times. Call leave once what is needed has been taken out.
func (s *server) readLarge(c echo.Context) (o *object, leave func(), err error) {
	r := c.Request()
	if err := wantJSON(r); err != nil {
		return nil, nil, err
	}
	if r.ContentLength > filesBody {
		return nil, nil, tooLarge(c, filesBody)
	}
	body := &spool{dir: s.spoolDir, limit: filesBody}
	defer body.close()
	n, err := io.Copy(body, io.LimitReader(patiently(c), filesBody+1))
	switch {
	case err != nil:
		return nil, nil, brokeOff(c, err)
	case n > filesBody:
		return nil, nil, tooLarge(c, filesBody)
	case body.cut:
		return nil, nil, errors.New("read body: no room for it on this host")
	}
	leave = func() {}
	if n > smallBody {
		if leave, err = s.enterHeavy(r.Context()); err != nil {
			return nil, nil, err
		}
	}
	p := make([]byte, n)
	if _, err = io.ReadFull(body.reader(), p); err == nil {
		o, err = parseObject(c, p)
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return o, leave, nil
}

func brokeOff(c echo.Context, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.Response().Header().Set("Connection", "close")
		return fault.Wrap(err, fault.BadRequest, "The body of the request came too slowly.")
	}
	return fault.Wrap(err, fault.BadRequest, "The body of the request broke off.")
}

func parseObject(c echo.Context, p []byte) (*object, error) {
	if len(bytes.TrimSpace(p)) == 0 {
		p = []byte("{}")
	}
	if err := checkJSON(p); err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "The body is not JSON: %s.", err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(p, &m); err != nil || m == nil {
		return nil, fault.Field("body", "must be a JSON object")
	}
	o := newObject("", m)
	c.Set(bodyKey, o)
	return o, nil
}

// patient reads a body that has to come at some pace: each step bytes within the patience, and all of it until a time. It
// needs no goroutine: the connection itself has a deadline, which moves on with every step and is gone after the last byte,
// for a limit that passes while the answer is made would end the request.
type patient struct {
	r        io.Reader
	rc       *http.ResponseController
	step     int
	patience time.Duration
	until    time.Time // zero: no end
	have     int       // bytes of this step
	begun    bool
}

// patiently gives the body of a JSON call.
func patiently(c echo.Context) *patient {
	patience, _ := c.Get(patienceKey).(time.Duration)
	return &patient{
		r: c.Request().Body, rc: http.NewResponseController(c.Response().Writer), step: bodyStep, patience: patience, until: time.Now().Add(bodyTime),
	}
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	if !p.begun || p.have >= p.step {
		p.begun, p.have = true, 0
		at := time.Now().Add(p.patience)
		if !p.until.IsZero() && at.After(p.until) {
			at = p.until
		}
		_ = p.rc.SetReadDeadline(at) // a writer that has none is not a connection
	}
	n, err := p.r.Read(b)
	p.have += n
	if err == io.EOF {
		_ = p.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// wantJSON refuses a body that says it is something else. Programs that name no type are taken at their word.
func wantJSON(r *http.Request) error {
	ct := r.Header.Get(echo.HeaderContentType)
	if ct == "" {
		return nil
	}
	t, _, err := mime.ParseMediaType(ct)
	if err != nil || t != "application/json" && !strings.HasSuffix(t, "+json") {
		return fault.New(fault.BadRequest, "The body must be JSON: send it with Content-Type: application/json.")
	}
	return nil
}

// tooLarge reads the rest of the body away, within bounds: a client that is still sending would see a reset instead of
// the answer. The connection is closed afterwards.
func tooLarge(c echo.Context, limit int64) error {
	c.Response().Header().Set("Connection", "close")
	rc := http.NewResponseController(c.Response().Writer)
	if rc.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.Request().Body, drainBody) // best effort: the answer goes out whatever comes of it
	}
	return fault.New(fault.TooLarge, "The body is larger than the %d MiB that this call takes.", limit>>20)
}

// checkJSON refuses what encoding/json would let pass. Its errors are safe to show.
func checkJSON(p []byte) error {
	if !utf8.Valid(p) {
		return errors.New("it holds bytes that are not UTF-8")
	}
	var all json.RawMessage
	if err := json.Unmarshal(p, &all); err != nil {
		const early = "unexpected end of JSON input"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() != early {
			return fmt.Errorf("it breaks at byte %d", syntax.Offset)
		}
		return errors.New("it ends too early")
	}
	if halfSurrogate(p) {
		return errors.New("it holds half of a surrogate pair")
	}
	return checkKeys(p)
}

// level is one object or array that is open. keys is nil for an array.
type level struct {
	keys    map[string]bool
	wantKey bool
}

// checkKeys refuses duplicate keys and deep nesting in p, which is known to be JSON. Long strings are jumped over.
func checkKeys(p []byte) error {
	var open []level
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '{', '[':
			if len(open) == maxNesting {
				return fmt.Errorf("it is nested more than %d deep", maxNesting)
			}
			l := level{}
			if p[i] == '{' {
				l = level{keys: map[string]bool{}, wantKey: true}
			}
			open = append(open, l)
		case '}', ']':
			open = open[:len(open)-1]
		case ',':
			open[len(open)-1].wantKey = open[len(open)-1].keys != nil
		case '"':
			last := stringEnd(p, i)
			if len(open) > 0 && open[len(open)-1].wantKey {
				l := &open[len(open)-1]
				var name string
				if err := json.Unmarshal(p[i:last+1], &name); err != nil || l.keys[name] {
					return errors.New("a key stands in it twice")
				}
				l.keys[name], l.wantKey = true, false
			}
			i = last
		}
	}
	return nil
}

// stringEnd gives the place of the quote that ends the string beginning at i.
func stringEnd(p []byte, i int) int {
	for j := i + 1; ; j++ {
		j += bytes.IndexByte(p[j:], '"')
		slashes := 0
		for p[j-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return j
		}
	}
}

// halfSurrogate finds a \uD800–\uDFFF escape that is not one of a pair; decoding would turn it into another character,
// and a path or command with it. Backslashes stand in strings only, so the text need not be parsed for this.
func halfSurrogate(p []byte) bool {
	for i := 0; i < len(p); i++ {
		next := bytes.IndexByte(p[i:], '\\')
		if next < 0 {
			return false
		}
		i += next + 1
		u := escaped(p, i)
		if u < 0 {
			continue
		}
		i += 4
		switch {
		case u >= 0xDC00 && u <= 0xDFFF:
			return true
		case u >= 0xD800 && u <= 0xDBFF:
			if i+2 >= len(p) || p[i+1] != '\\' {
				return true
			}
			if low := escaped(p, i+2); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

// escaped gives the number of the uXXXX at i, or -1.
func escaped(p []byte, i int) int {
	if i+4 >= len(p) || p[i] != 'u' {
		return -1
	}
	n := 0
	for _, b := range p[i+1 : i+5] {
		switch {
		case b >= '0' && b <= '9':
			n = n<<4 | int(b-'0')
		case b|0x20 >= 'a' && b|0x20 <= 'f':
			n = n<<4 | int(b|0x20-'a'+10)
		default:
			return -1
		}
	}
	return n
}
