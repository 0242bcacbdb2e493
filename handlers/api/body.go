package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
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
	p, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "The body of the request broke off.")
	}
	if int64(len(p)) > limit {
		return nil, tooLarge(c, limit)
	}
	if len(bytes.TrimSpace(p)) == 0 {
		return newObject("", nil), nil
	}
	if err := checkJSON(p); err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "The body is not JSON: %s.", err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(p, &m); err != nil || m == nil {
		return nil, fault.Field("body", "must be a JSON object")
	}
	return newObject("", m), nil
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

// checkJSON walks the text once and refuses what encoding/json would let pass. Its errors are safe to show.
func checkJSON(p []byte) error {
	if !utf8.Valid(p) {
		return errors.New("it holds bytes that are not UTF-8")
	}
	if halfSurrogate(p) {
		return errors.New("it holds half of a surrogate pair")
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber()
	if err := walk(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows after the object")
	}
	return nil
}

// walk reads one value and refuses duplicate keys and deep nesting in it.
func walk(dec *json.Decoder, depth int) error {
	tok, err := token(dec)
	if err != nil {
		return err
	}
	d, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if depth++; depth > maxNesting {
		return fmt.Errorf("it is nested more than %d deep", maxNesting)
	}
	seen := map[string]bool{}
	for dec.More() {
		if d == '{' {
			key, err := token(dec)
			if err != nil {
				return err
			}
			name, _ := key.(string)
			if seen[name] {
				return errors.New("a key stands in it twice")
			}
			seen[name] = true
		}
		if err := walk(dec, depth); err != nil {
			return err
		}
	}
	_, err = token(dec)
	return err
}

// token reads one; what encoding/json says about a syntax error is a position and a character, and may be shown.
func token(dec *json.Decoder) (json.Token, error) {
	tok, err := dec.Token()
	if err == nil {
		return tok, nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("it ends too early")
	}
	return nil, fmt.Errorf("it breaks at byte %d", dec.InputOffset())
}

// halfSurrogate finds a \uD800–\uDFFF escape that is not one of a pair; decoding would turn it into another character,
// and a path or command with it. Backslashes stand in strings only, so the text need not be parsed for this.
func halfSurrogate(p []byte) bool {
	for i := 0; i < len(p); i++ {
		if p[i] != '\\' {
			continue
		}
		i++
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
