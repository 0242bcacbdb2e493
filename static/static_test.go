package static_test

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/static"
)

func TestOnlyAssetsAreServed(t *testing.T) {
	for _, name := range []string{"none.js", "manifest.json", ".keep", "../static.go", "app.js.gz", "a/b.css", ""} {
		w := httptest.NewRecorder()
		static.Handler().ServeHTTP(w, httptest.NewRequest("GET", static.Prefix+name, nil))
		require.Equal(t, 404, w.Code, name)
	}
}

func TestAssets(t *testing.T) {
	if !static.Built() {
		require.Equal(t, "/static/app.js", static.URL("app.js"), "before `npm run build` addresses are the plain names")
		return
	}
	for name, media := range map[string]string{"app.js": "text/javascript", "app.css": "text/css", "icons.svg": "image/svg+xml", "favicon.svg": "image/svg+xml"} {
		for _, coding := range []string{"", "gzip, br", "gzip;q=0"} {
			r := httptest.NewRequest("GET", static.URL(name), nil)
			r.Header.Set("Accept-Encoding", coding)
			w := httptest.NewRecorder()
			static.Handler().ServeHTTP(w, r)
			require.Equal(t, 200, w.Code, name)
			require.Contains(t, w.Header().Get("Content-Type"), media)
			require.Contains(t, w.Header().Get("Cache-Control"), "immutable")
			require.Equal(t, coding == "gzip, br", w.Header().Get("Content-Encoding") == "gzip")
		}
	}
}
