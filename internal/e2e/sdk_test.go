package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// The SDK from the package index, unmodified, finds what it expects.
func TestTheRealSDK(t *testing.T) {
	python := testenv.SDK(t)
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/tier_a.py")
	cmd.Env = append(os.Environ(), "NOXUS_BACKEND_URL="+s.url, "NOXUS_API_KEY="+host.key("alpha", "sandboxes:run"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "tier A holds")
}

// The examples of the SDK's own page run as they stand there.
func TestTheExamplesOfTheSDK(t *testing.T) {
	python := testenv.SDK(t)
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	admin := host.run("key", "create", "--workspace", "alpha", "--name", "admin", "--owner", "ann@example.org", "--permission", "sandboxes:run,members:manage,keys:manage")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/sdk_examples.py")
	cmd.Env = append(os.Environ(), "NOXUS_BACKEND_URL="+s.url, "NOXUS_API_KEY="+host.key("alpha", "sandboxes:run"), "ADMIN_API_KEY="+admin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "the examples hold")
}

// Every byte value goes through a terminal unchanged, both ways, once the terminal is told to leave bytes alone.
func TestTerminalsCarryEveryByte(t *testing.T) {
	host := newInstallation(t)
	s := host.serve()
	host.person("ann@example.org", "alpha")
	api := s.rest(host.key("alpha", "sandboxes:run"))
	id := api.create("bytes")
	term := api.view(id, api.openPTY(id), "")

	every := make([]byte, 0, 256*4)
	for range 4 {
		for b := range 256 {
			every = append(every, byte(b))
		}
	}
	term.typeText("PS1=; stty raw -echo; printf 'RE''ADY'; head -c 1024 >/work/in; printf 'GO''T'; cat /work/in; printf 'E''ND'\n")
	term.sees("READY")
	term.forget()
	term.typeText(string(every))
	term.sees("END")
	got, _, _ := strings.Cut(term.text(), "END") // the shell's next prompt may follow
	require.True(t, got == "GOT"+string(every), "%q", got)
	code, in := api.do("GET", "/v1/sandboxes/"+id+"/files/raw?path=/work/in", nil)
	require.Equal(t, 200, code)
	require.True(t, bytes.Equal(every, in), "%q", in)
}
