package api

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// object is a JSON object that is taken apart field by field. What is wrong is collected, so that one answer names all of
// it; check also names the fields that nobody asked for, because an option that is ignored is worse than one refused.
type object struct {
	prefix string // of field names in errors: "resources."
	raw    map[string]json.RawMessage
	bad    map[string]string // shared with nested objects
	known  map[string]bool
	inner  []*object
}

// maxWrong bounds how many fields one answer names.
const maxWrong = 32

func newObject(prefix string, raw map[string]json.RawMessage) *object {
	return &object{prefix: prefix, raw: raw, bad: map[string]string{}, known: map[string]bool{}}
}

// fail notes what is wrong with a field; the first word on it stands.
func (o *object) fail(name, msg string) {
	if _, ok := o.bad[o.prefix+name]; !ok && len(o.bad) < maxWrong {
		o.bad[o.prefix+name] = msg
	}
}

// get gives a field's text; false when it is absent or null.
func (o *object) get(name string) (json.RawMessage, bool) {
	o.known[name] = true
	v, ok := o.raw[name]
	return v, ok && string(v) != "null"
}

// has reports whether a field is there and not null.
func (o *object) has(name string) bool {
	_, ok := o.get(name)
	return ok
}

// text gives a string of at most limit bytes; "" when absent.
func (o *object) text(name string, limit int) string {
	v, ok := o.get(name)
	if !ok {
		return ""
	}
	var s string
	if json.Unmarshal(v, &s) != nil {
		o.fail(name, "must be text")
		return ""
	}
	if len(s) > limit {
		o.fail(name, "is longer than "+strconv.Itoa(limit)+" bytes")
		return ""
	}
	return s
}

// line gives a string without control characters and at most limit characters.
func (o *object) line(name string, limit int) string {
	s := o.text(name, limit*utf8.UTFMax)
	if utf8.RuneCountInString(s) > limit {
		o.fail(name, "is longer than "+strconv.Itoa(limit)+" characters")
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		o.fail(name, "holds control characters")
	}
	return s
}

// word gives a string of at most limit bytes without NUL.
func (o *object) word(name string, limit int) string {
	s := o.text(name, limit)
	if strings.ContainsRune(s, 0) {
		o.fail(name, "holds a NUL byte")
	}
	return s
}

// flag gives a bool.
func (o *object) flag(name string, def bool) bool {
	v, ok := o.get(name)
	if !ok {
		return def
	}
	var b bool
	if json.Unmarshal(v, &b) != nil {
		o.fail(name, "must be true or false")
	}
	return b
}

// whole gives an integer from lo to hi; def when absent.
func (o *object) whole(name string, lo, hi, def int64) int64 {
	v, ok := o.get(name)
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < lo || n > hi {
		o.fail(name, "must be a whole number from "+strconv.FormatInt(lo, 10)+" to "+strconv.FormatInt(hi, 10))
		return def
	}
	return n
}

// number gives a positive finite number; 0 when absent.
func (o *object) number(name string, hi float64) float64 {
	v, ok := o.get(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil || math.IsNaN(n) || n <= 0 || n > hi {
		o.fail(name, "must be a number above 0 and at most "+strconv.FormatFloat(hi, 'g', -1, 64))
		return 0
	}
	return n
}

// oneOf gives one of the words; def when absent.
func (o *object) oneOf(name, def string, words ...string) string {
	if !o.has(name) {
		return def
	}
	s := o.text(name, 64)
	if !slices.Contains(words, s) {
		o.fail(name, "must be one of "+strings.Join(words, ", "))
		return def
	}
	return s
}

// nested gives an object inside; its errors are noted with those of o. nil when absent.
func (o *object) nested(name string) *object {
	v, ok := o.get(name)
	if !ok {
		return nil
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(v, &m) != nil {
		o.fail(name, "must be an object")
		return nil
	}
	n := newObject(o.prefix+name+".", m)
	n.bad = o.bad
	o.inner = append(o.inner, n)
	return n
}

// texts gives a map from text to text, with at most entries of them, keys and values within their bytes.
func (o *object) texts(name string, entries, keyLimit, valueLimit int) map[string]string {
	v, ok := o.get(name)
	if !ok {
		return nil
	}
	var m map[string]*string
	if json.Unmarshal(v, &m) != nil || slices.Contains(slices.Collect(maps.Values(m)), nil) {
		o.fail(name, "must be an object whose values are text")
		return nil
	}
	if len(m) > entries {
		o.fail(name, "has more than "+strconv.Itoa(entries)+" entries")
		return nil
	}
	out := make(map[string]string, len(m))
	for k, s := range m {
		switch {
		case k == "" || len(k) > keyLimit:
			o.fail(name, "has a name that is empty or longer than "+strconv.Itoa(keyLimit)+" bytes")
		case len(*s) > valueLimit:
			o.fail(name, "has a value longer than "+strconv.Itoa(valueLimit)+" bytes")
		case strings.ContainsRune(k, 0) || strings.ContainsRune(*s, 0):
			o.fail(name, "holds a NUL byte")
		}
		out[k] = *s
	}
	return out
}

// environment gives a map of environment variables; what their names may be is the service's word.
func (o *object) environment(name string) map[string]string {
	return o.texts(name, 128, 128, 32<<10)
}

// path gives a path as bytes, from NAME or, in base64, NAME_b64. Required ones must be there.
func (o *object) path(name string, required bool) []byte {
	text, hasText := "", o.has(name)
	if hasText {
		text = o.text(name, smallBody)
	}
	b64, hasB64 := "", o.has(name+"_b64")
	if hasB64 {
		b64 = o.text(name+"_b64", smallBody)
	}
	p, field, msg := choosePath(name, text, hasText, b64, hasB64, required)
	if msg != "" {
		o.fail(field, msg)
	}
	return p
}

// choosePath applies the path rules to what came as text or base64; a message names what is wrong with which field.
func choosePath(name, text string, hasText bool, b64 string, hasB64, required bool) (p []byte, field, msg string) {
	switch {
	case hasText && hasB64:
		return nil, name, "is given twice, as text and as base64"
	case hasB64:
		name += "_b64"
		var err error
		if p, err = decodeBase64(b64); err != nil {
			return nil, name, "is not base64"
		}
	case hasText:
		p = []byte(text)
	case !required:
		return nil, "", ""
	}
	return p, name, pathProblem(p)
}

// pathProblem says what is wrong with a path, or "".
func pathProblem(p []byte) string {
	switch {
	case len(p) == 0:
		return "must not be empty"
	case len(p) >= agent.MaxPath:
		return "is longer than " + strconv.Itoa(agent.MaxPath-1) + " bytes"
	case slices.Contains(p, 0):
		return "holds a NUL byte"
	case p[0] != '/':
		return "must be absolute: begin it with /"
	}
	return ""
}

// decodeBase64 takes the ordinary and the URL alphabet, with or without padding.
func decodeBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/", "\n", "", "\r", "").Replace(s)
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
}

// check gives the one error about everything that was wrong, in nested objects too, or nil.
func (o *object) check() error {
	o.unknown()
	return invalid(o.bad)
}

// unknown notes the fields that nobody asked for.
func (o *object) unknown() {
	for name := range o.raw {
		if !o.known[name] {
			o.fail(shown(name), "is not known here")
		}
	}
	for _, n := range o.inner {
		n.unknown()
	}
}

// invalid makes the error of several fields, or nil.
func invalid(bad map[string]string) error {
	if len(bad) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(bad))
	err := fault.Field(names[0], "%s", bad[names[0]])
	err.Fields = bad
	if len(names) > 1 {
		err.Public += " (and " + strconv.Itoa(len(names)-1) + " more)"
	}
	return err
}

// shown shortens a name that somebody else chose.
func shown(name string) string {
	if r := []rune(name); len(r) > 64 {
		return string(r[:64]) + "…"
	}
	return name
}
