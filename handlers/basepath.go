package handlers

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// under serves a whole server below a path of its public URL, as "/tools/gate", behind a proxy that keeps the path and behind one
// that takes it away. Everything inside knows addresses from the root only; here they get the path in front on their way out:
// redirects, and the addresses in pages.
func under(base string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == base:
			http.Redirect(w, r, base+"/", http.StatusPermanentRedirect)
			return
		case strings.HasPrefix(path, base+"/"):
			u := *r.URL
			u.Path, u.RawPath = strings.TrimPrefix(path, base), strings.TrimPrefix(u.RawPath, base)
			r2 := *r
			r2.URL, r2.RequestURI = &u, u.RequestURI()
			r = &r2
		}
		next.ServeHTTP(&based{ResponseWriter: w, base: base, api: strings.HasPrefix(r.URL.Path, "/v1/")}, r)
	})
}

// based puts the path in front of addresses in an answer. Pages and fragments are written whole, so no address is cut in two.
type based struct {
	http.ResponseWriter
	base   string
	api    bool // JSON and its documents, whatever their type
	begun  bool
	markup bool
}

// Unwrap is for http.ResponseController: streams, deadlines, websockets.
func (b *based) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// addressed are the headers that hold an address of this server.
var addressed = []string{"Location", "Hx-Redirect", "Hx-Location", "Hx-Push-Url", "Hx-Replace-Url"}

func (b *based) begin() {
	if b.begun {
		return
	}
	b.begun = true
	h := b.Header()
	for _, name := range addressed {
		if v := h.Get(name); v != "" {
			h.Set(name, b.address(v))
		}
	}
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	b.markup = kind == "text/html" || kind == "text/event-stream" && !b.api
	if b.markup {
		h.Del("Content-Length")
	}
}

func (b *based) address(v string) string {
	u, err := url.Parse(v)
	if err != nil || u.Host != "" || !strings.HasPrefix(v, "/") || v == b.base || strings.HasPrefix(v, b.base+"/") {
		return v
	}
	return b.base + v
}

func (b *based) WriteHeader(status int) {
	b.begin()
	b.ResponseWriter.WriteHeader(status)
}

// rooted are attributes whose value is an address from the root. Text cannot look like one: its quotes are escaped.
var rooted = regexp.MustCompile(`([ \n\t](?:href|src|action|formaction|sse-connect|hx-get|hx-post|data-(?:base|sandbox|files|root))=")(/(?:[^/"][^"]*)?")`)

func (b *based) Write(p []byte) (int, error) {
	b.begin()
	if !b.markup {
		return b.ResponseWriter.Write(p)
	}
	if _, err := b.ResponseWriter.Write(rooted.ReplaceAll(p, []byte("${1}"+b.base+"${2}"))); err != nil {
		return 0, err
	}
	return len(p), nil
}
