package api

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryCallHasAnExample keeps docs/api.md whole.
func TestEveryCallHasAnExample(t *testing.T) {
	p, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	doc := strings.NewReplacer(`${SANDGATE_URL/http/ws}`, "$SANDGATE_URL", `"`, " ", "?", " ", "\n", " ").Replace(string(p))
	for _, r := range (&server{}).routes() {
		path := "$SANDGATE_URL" + strings.NewReplacer(":id", "$ID", ":cmd", "$CMD", ":pty", "$PTY", ":group", "$GROUP", ":key", "$KEY", ":snapshot", "$SNAPSHOT", ":role", "$ROLE", ":approval", "$APPROVAL", ":name", "stdin", ":recording", "$RECORDING").Replace(r.path)
		found := false
		for line := range strings.SplitSeq(doc, "SANDGATE_KEY") {
			found = found || strings.Contains(line+" ", path+" ")
		}
		assert.True(t, found, "no example of %s %s", r.method, r.path)
	}
}
