package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

func inspects(t *testing.T, c *contract) {
	id := c.create(t)
	client := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) { return c.Runtime.Dial(ctx, id, bulk) })
	defer func() { require.NoError(t, client.Close()) }()
	exit, err := client.Run(c.ctx, agent.CommandSpec{ID: sandbox.RandomID("cmd"), Command: "printf written >mark-of-effect"}, nowhere{})
	require.NoError(t, err)
	require.Zero(t, exit.Code)

	var upper bytes.Buffer
	require.NoError(t, c.Runtime.Upper(c.ctx, id, &upper))
	found := ""
	for archive := tar.NewReader(&upper); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if strings.HasSuffix(h.Name, "/mark-of-effect") {
			content, err := io.ReadAll(archive)
			require.NoError(t, err)
			found = string(content)
		}
	}
	require.Equal(t, "written", found)
	full := errors.New("no room")
	require.ErrorIs(t, c.Runtime.Upper(c.ctx, id, refusing{full}), full, "who stops reading stops it")

	_, done, err := c.Runtime.Lower(c.ctx, id)
	require.NoError(t, err)
	require.NoError(t, done())
	_, err = c.Runtime.Processes(c.ctx, id)
	require.NoError(t, err)

	other := sandbox.NewID()
	require.Equal(t, fault.NotFound, fault.KindOf(c.Runtime.Upper(c.ctx, other, &upper)))
	_, _, err = c.Runtime.Lower(c.ctx, other)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = c.Runtime.Processes(c.ctx, other)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

// nowhere takes output and forgets it.
type nowhere struct{}

func (nowhere) Stdout([]byte) error { return nil }
func (nowhere) Stderr([]byte) error { return nil }

// refusing takes nothing.
type refusing struct{ err error }

func (r refusing) Write([]byte) (int, error) { return 0, r.err }
