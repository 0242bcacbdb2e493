package files

import (
	"fmt"
	"mime"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// Clean judges a path as bytes and gives its shortest form: absolute, no empty, "." or ".." parts (".." is resolved by
// name; links are the sandbox's own business). Otherwise fault.Invalid on the field "path".
func Clean(p []byte) ([]byte, error) {
	switch {
	case len(p) == 0:
		return nil, fault.Field("path", "must not be empty")
	case len(p) >= agent.MaxPath:
		return nil, fault.Field("path", "is longer than %d bytes", agent.MaxPath-1)
	case strings.IndexByte(string(p), 0) >= 0:
		return nil, fault.Field("path", "must not hold NUL")
	case p[0] != '/':
		return nil, fault.Field("path", "must be absolute")
	}
	return []byte(path.Clean(string(p))), nil
}

// Display makes a name or path safe to show: bytes that are no UTF-8 as \xHH, controls, bidi and other invisible
// characters as \u{HEX}. What needs no change is returned as it is; a backslash is doubled only where something was escaped.
func Display(name []byte) string {
	if plain(name) {
		return string(name)
	}
	var b strings.Builder
	for len(name) > 0 {
		r, n := utf8.DecodeRune(name)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02X`, name[0])
		case r == '\\':
			b.WriteString(`\\`)
		case hidden(r):
			fmt.Fprintf(&b, `\u{%X}`, r)
		default:
			b.WriteRune(r)
		}
		name = name[n:]
	}
	return b.String()
}

func plain(name []byte) bool {
	return utf8.Valid(name) && !strings.ContainsFunc(string(name), hidden)
}

// hidden reports runes that show nothing or change how others are shown.
func hidden(r rune) bool {
	return r != ' ' && (!unicode.IsGraphic(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zs, r)) || unicode.Is(unicode.Variation_Selector, r)
}

// Disposition is a Content-Disposition header that downloads under the name and cannot be broken out of.
func Disposition(name []byte) string {
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r == '/' || r == '\\' || hidden(r) {
			return '_'
		}
		return r
	}, string(name))
	if clean == "" || clean == "." || clean == ".." {
		clean = "download"
	}
	if h := mime.FormatMediaType("attachment", map[string]string{"filename": clean}); h != "" {
		return h
	}
	return `attachment; filename="download"`
}
