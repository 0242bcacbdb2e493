//go:build soak

package e2e

import (
	"archive/tar"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func manyEntries(s *siege, id string) {
	code, text := s.upload(id, "archive?path=/work&format=tar", tarOf(func(w *tar.Writer) error {
		for i := range 150_000 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d/%d", i), Mode: 0o644}); err != nil {
				return err
			}
		}
		return nil
	}))
	require.Equal(s.t, http.StatusUnprocessableEntity, code, text)
}

// The long form: more places, more of everything, and then all of it at once, three times over.
func TestExhaustionForLong(t *testing.T) {
	s := newSiege(t)
	long := []attack{
		inodeFill("/dev/shm"), inodeFill("/run"),
		{name: "archive of many files", outside: manyEntries, survives: true, resources: map[string]any{"memory_mb": 1024}},
		{
			name: "10 GB of stderr", command: "head -c 64M /dev/zero | tr '\\0' x >/tmp/x; for i in {1..160}; do cat /tmp/x >&2; done; exit 3", timeout: 110, survives: true,
			check: func(t *testing.T, e executionJSON, code int) {
				require.Equal(t, 200, code)
				require.True(t, e.Truncated)
				require.Len(t, e.Stderr, 16<<20)
				require.Equal(t, 3, e.ExitCode)
			},
		},
		{name: "a terabyte written", command: "timeout 60 head -c 1T /dev/zero >/big", timeout: 90, survives: true, check: noSpace, resources: map[string]any{"disk_mb": 4096}},
	}
	for _, a := range append(attacks(), long...) {
		t.Run(a.name, func(t *testing.T) { a.run(t, s) })
	}
	for round := range 3 {
		t.Run(fmt.Sprintf("all at once, %d", round), func(t *testing.T) {
			var wg sync.WaitGroup
			stop := s.watchNeighbour()
			for _, a := range attacks() {
				if a.command == "" {
					continue
				}
				wg.Go(func() {
					var sb sandboxJSON
					api := rest{t: t, url: s.api.url, key: s.api.key}
					api.ok("POST", "/v1/sandboxes", map[string]any{"label": a.name, "resources": map[string]any{"memory_mb": 256, "disk_mb": 64, "pids": 256}}, &sb)
					_, _ = api.do("POST", "/v1/sandboxes/"+sb.ID+"/commands", map[string]any{"command": a.command, "timeout": 20})
					api.ok("DELETE", "/v1/sandboxes/"+sb.ID, nil, nil)
				})
			}
			wg.Wait()
			took := stop()
			t.Logf("neighbour p95 %s, %.1f times quiet, of %d", p95(took), float64(p95(took))/float64(s.quiet), len(took))
		})
	}
	require.Equal(t, http.StatusOK, func() int { code, _ := s.api.do("GET", "/v1/sandboxes", nil); return code }())
}
