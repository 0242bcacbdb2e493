package handlers

import (
	"encoding/base64"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// pathOf reads a path from an address or form: NAME as text, or NAME_b64 for one that is not UTF-8.
func pathOf(q url.Values, name string) ([]byte, error) {
	if b64 := q.Get(name + "_b64"); b64 != "" {
		if len(b64) > 2*agent.MaxPath {
			return nil, fault.Field(name, "is too long")
		}
		b64 = strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(b64), "=")
		p, err := base64.RawURLEncoding.DecodeString(b64)
		if err != nil {
			return nil, fault.Field(name+"_b64", "is not base64")
		}
		return checked(p, name)
	}
	return checked([]byte(q.Get(name)), name)
}

func checked(p []byte, name string) ([]byte, error) {
	switch {
	case len(p) == 0:
		return nil, fault.Field(name, "must not be empty")
	case len(p) >= agent.MaxPath:
		return nil, fault.Field(name, "is too long")
	case p[0] != '/':
		return nil, fault.Field(name, "must be absolute")
	case strings.ContainsRune(string(p), 0):
		return nil, fault.Field(name, "must not hold NUL")
	}
	return p, nil
}

// pathQuery is the query string of a path: readable where it can be.
func pathQuery(name string, p []byte) string {
	if utf8.Valid(p) {
		// A slash needs no escape in a query, and addresses are there to be read.
		return name + "=" + strings.ReplaceAll(url.QueryEscape(string(p)), "%2F", "/")
	}
	return name + "_b64=" + base64.RawURLEncoding.EncodeToString(p)
}

// join puts a name into a folder.
func join(dir, name []byte) []byte {
	out := append([]byte{}, dir...)
	if len(out) == 0 || out[len(out)-1] != '/' {
		out = append(out, '/')
	}
	return append(out, name...)
}

// parent is the folder that a path is in.
func parent(p []byte) []byte { return []byte(path.Dir(strings.TrimRight(string(p), "/"))) }

// base is the last name of a path.
func baseName(p []byte) []byte { return []byte(path.Base(string(p))) }

// fileName checks a name that a person typed or a browser sent: one name, not a path.
func fileName(name string) ([]byte, error) {
	switch {
	case name == "" || name == "." || name == "..":
		return nil, fault.Field("name", "must be a name")
	case len(name) > 255:
		return nil, fault.Field("name", "is too long: 255 bytes at most")
	case strings.ContainsAny(name, "/\x00"):
		return nil, fault.Field("name", "must not hold a slash or NUL")
	}
	return []byte(name), nil
}
