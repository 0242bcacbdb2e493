// Package static owns the built stylesheets, scripts and icons: their content-hashed addresses and the handler that serves
// them. It must never serve anything that was not embedded at build time.
package static

import (
	"bytes"
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// Prefix is where the handler is mounted.
const Prefix = "/static/"

// dist is made by `npm run build`. A fresh clone has only .keep in it, so that Go code compiles before assets are built.
//
//go:embed all:dist
var dist embed.FS

var manifest = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	b, err := dist.ReadFile("dist/manifest.json")
	if err == nil {
		err = json.Unmarshal(b, &names)
	}
	if err != nil {
		return nil
	}
	return names
})

// Built reports whether the assets were built before this program was compiled.
func Built() bool { return len(manifest()) > 0 }

// URL gives the address of an asset by its plain name ("app.js"). The address of one that was not built answers 404.
func URL(name string) string {
	if hashed, ok := manifest()[name]; ok {
		return Prefix + hashed
	}
	return Prefix + name
}

var mediaTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
	".map": "application/json",
}

// Handler serves the assets under Prefix: cached for ever, because a changed file has another name; gzip where accepted.
func Handler() http.Handler { return http.HandlerFunc(serve) }

func serve(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Prefix)
	media, known := mediaTypes[path.Ext(name)]
	if !known || strings.Contains(name, "/") {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	content, err := fs.ReadFile(dist, "dist/"+name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if zipped, err := fs.ReadFile(dist, "dist/"+name+".gz"); err == nil && acceptsGzip(r) {
		content = zipped
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func acceptsGzip(r *http.Request) bool {
	for _, part := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		coding, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			return strings.ReplaceAll(q, " ", "") != "q=0"
		}
	}
	return false
}
