package sandboxtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
)

// Subject is a runtime that shall keep the contract.
type Subject struct {
	Runtime sandbox.Runtime
	Image   string // an image that is ready
	// Left lists what is on the host of this runtime's installation; nil where there is no host.
	Left func() ([]string, error)
}

// patience bounds every single wait of the contract: far more than a loaded machine needs.
const patience = 30 * time.Second

// RunRuntime runs the contract of sandbox.Runtime against fresh subjects, one for each test.
func RunRuntime(t *testing.T, subject func(t *testing.T) Subject) {
	for name, test := range map[string]func(*testing.T, *contract){
		"creates, answers and removes":           lives,
		"wants whole ids":                        refusesIDs,
		"knows nothing of what is not there":     absent,
		"leaves nothing when a step is refused":  refusedSteps,
		"leaves nothing when cancelled":          cancelledSteps,
		"refuses a second one of the same id":    twice,
		"removes once for many callers":          removesAtOnce,
		"stops waiting with its context":         waitStops,
		"sees a death":                           waitSees,
		"keeps several apart":                    several,
		"hands bytes through unchanged":          bytesThrough,
		"closes a bridge without harm to others": closesBridge,

		"suspends and resumes":                                 suspends,
		"runs on when a save is refused":                       refusedSaves,
		"leaves nothing but the save when a resume is refused": refusedResumes,
		"saves without stopping, and starts others from it":    savesAndForks,
		"settles what was broken off":                          settles,
		"takes its save along when it is removed":              removesSave,
		"holds to other limits while it runs":                  updates,
		"is looked into from outside":                          inspects,
	} {
		t.Run(name, func(t *testing.T) {
			s := subject(t)
			ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
			defer cancel()
			test(t, &contract{Subject: s, ctx: ctx})
		})
	}
}

type contract struct {
	Subject
	ctx context.Context
}

func (c *contract) spec() sandbox.Spec {
	return sandbox.Spec{
		ID: sandbox.NewID(), Image: c.Image, Hostname: "contract",
		Resources: sandbox.Resources{CPU: 1, MemoryMB: 256, DiskMB: 256, PIDs: 256},
	}
}

func silent(string) error { return nil }

// create makes a sandbox that is removed at the end of the test.
func (c *contract) create(t *testing.T) sandbox.ID {
	t.Helper()
	spec := c.spec()
	require.NoError(t, c.Runtime.Create(c.ctx, spec, silent))
	t.Cleanup(func() { require.NoError(t, c.Runtime.Remove(context.WithoutCancel(c.ctx), spec.ID)) })
	return spec.ID
}

func (c *contract) gone(t *testing.T, id sandbox.ID) {
	t.Helper()
	alive, err := c.Runtime.Alive(c.ctx, id)
	require.NoError(t, err)
	require.False(t, alive)
	found, err := c.Runtime.Found(c.ctx)
	require.NoError(t, err)
	require.NotContains(t, found, id)
	c.clean(t)
}

// clean needs every sandbox of the subject to be removed.
func (c *contract) clean(t *testing.T) {
	t.Helper()
	if c.Left == nil {
		return
	}
	// A bridge that the test itself has left open ends with its sandbox, a moment later.
	var left []string
	require.Eventually(t, func() bool {
		var err error
		left, err = c.Left()
		return err == nil && len(left) == 0
	}, patience, 10*time.Millisecond, "left on the host: %v", &left)
}

// hello asks the agent over a bulk bridge, which speaks plain HTTP.
func (c *contract) hello(t *testing.T, bridge io.ReadWriter) {
	t.Helper()
	_, err := io.WriteString(bridge, "GET /v1/hello HTTP/1.1\r\nHost: agent\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(bridge), nil)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
}

func lives(t *testing.T, c *contract) {
	id := c.create(t)
	alive, err := c.Runtime.Alive(c.ctx, id)
	require.NoError(t, err)
	require.True(t, alive)
	found, err := c.Runtime.Found(c.ctx)
	require.NoError(t, err)
	require.Contains(t, found, id)
	u, err := c.Runtime.Usage(c.ctx, id)
	require.NoError(t, err)
	require.Positive(t, u.MemoryBytes)
	require.Positive(t, u.PIDs)
	require.GreaterOrEqual(t, u.DiskBytes, int64(-1))
	client := agent.NewClient(func(ctx context.Context, bulk bool) (io.ReadWriteCloser, error) {
		return c.Runtime.Dial(ctx, id, bulk)
	})
	h, err := client.Hello(c.ctx)
	require.NoError(t, err)
	require.NotEmpty(t, h.BootID)
	require.NoError(t, client.Close())
	require.NoError(t, c.Runtime.Remove(c.ctx, id))
	c.gone(t, id)
	require.NoError(t, c.Runtime.Remove(c.ctx, id), "removing again")
	c.gone(t, id)
}

func refusesIDs(t *testing.T, c *contract) {
	whole := sandbox.NewID()
	for _, id := range []sandbox.ID{"", "sb", whole[:21], whole + "x", "sb*", "--help", "../../../../../../../etc", sandbox.ID("SB" + string(whole[2:]))} {
		spec := c.spec()
		spec.ID = id
		require.Error(t, c.Runtime.Create(c.ctx, spec, silent), "%q", id)
		_, err := c.Runtime.Dial(c.ctx, id, false)
		require.Error(t, err, "%q", id)
		_, err = c.Runtime.Alive(c.ctx, id)
		require.Error(t, err, "%q", id)
		_, err = c.Runtime.Usage(c.ctx, id)
		require.Error(t, err, "%q", id)
		require.Error(t, c.Runtime.Remove(c.ctx, id), "%q", id)
		_, err = c.Runtime.Wait(c.ctx, id)
		require.Error(t, err, "%q", id)
	}
	c.clean(t)
}

func absent(t *testing.T, c *contract) {
	id := sandbox.NewID()
	_, err := c.Runtime.Dial(c.ctx, id, false)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = c.Runtime.Usage(c.ctx, id)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	require.NoError(t, c.Runtime.Remove(c.ctx, id))
	d, err := c.Runtime.Wait(c.ctx, id)
	require.NoError(t, err)
	require.NotEmpty(t, d.Reason)
	c.gone(t, id)
}

// stepNames learns the steps of a creation from one that works.
func (c *contract) stepNames(t *testing.T) []string {
	t.Helper()
	var names []string
	spec := c.spec()
	require.NoError(t, c.Runtime.Create(c.ctx, spec, func(s string) error { names = append(names, s); return nil }))
	require.NoError(t, c.Runtime.Remove(c.ctx, spec.ID))
	require.NotEmpty(t, names, "a creation without steps writes no intent")
	return names
}

func refusedSteps(t *testing.T, c *contract) {
	refusal := errors.New("the journal is full")
	for i, name := range c.stepNames(t) {
		spec := c.spec()
		n := 0
		err := c.Runtime.Create(c.ctx, spec, func(string) error {
			n++
			if n == i+1 {
				return refusal
			}
			return nil
		})
		require.ErrorIs(t, err, refusal, name)
		require.Equal(t, i+1, n, "%s: no step may follow a refused one", name)
		c.gone(t, spec.ID)
	}
}

func cancelledSteps(t *testing.T, c *contract) {
	for _, name := range c.stepNames(t) {
		for _, delay := range []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond} {
			ctx, cancel := context.WithCancel(c.ctx)
			spec := c.spec()
			err := c.Runtime.Create(ctx, spec, func(s string) error {
				if s == name && delay == 0 {
					cancel()
				} else if s == name {
					time.AfterFunc(delay, cancel)
				}
				return nil
			})
			cancel()
			if err == nil { // the step was faster than the delay
				require.NoError(t, c.Runtime.Remove(c.ctx, spec.ID))
			} else {
				require.ErrorIs(t, err, context.Canceled, "%s after %s", name, delay)
			}
			c.gone(t, spec.ID)
		}
	}
}

func twice(t *testing.T, c *contract) {
	id := c.create(t)
	spec := c.spec()
	spec.ID = id
	require.Error(t, c.Runtime.Create(c.ctx, spec, silent))
	bridge, err := c.Runtime.Dial(c.ctx, id, true)
	require.NoError(t, err, "the first one is unharmed")
	c.hello(t, bridge)
	require.NoError(t, bridge.Close())
}

func removesAtOnce(t *testing.T, c *contract) {
	id := c.create(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = c.Runtime.Remove(c.ctx, id) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	c.gone(t, id)
}

func waitStops(t *testing.T, c *contract) {
	id := c.create(t)
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	_, err := c.Runtime.Wait(ctx, id)
	require.ErrorIs(t, err, context.Canceled)
}

func waitSees(t *testing.T, c *contract) {
	id := c.create(t)
	type outcome struct {
		d   sandbox.Death
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		d, err := c.Runtime.Wait(c.ctx, id)
		ended <- outcome{d, err}
	}()
	require.NoError(t, c.Runtime.Remove(c.ctx, id))
	select {
	case o := <-ended:
		require.NoError(t, o.err)
		require.NotEmpty(t, o.d.Reason)
	case <-time.After(patience):
		t.Fatal("Wait did not see the death")
	}
}

func several(t *testing.T, c *contract) {
	const n = 4
	ids := make([]sandbox.ID, n)
	var wg sync.WaitGroup
	for i := range ids {
		spec := c.spec()
		ids[i] = spec.ID
		wg.Go(func() {
			if err := c.Runtime.Create(c.ctx, spec, silent); err != nil {
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Runtime.Remove(c.ctx, ids[0]))
	found, err := c.Runtime.Found(c.ctx)
	require.NoError(t, err)
	require.NotContains(t, found, ids[0])
	for _, id := range ids[1:] {
		require.True(t, slices.Contains(found, id))
		bridge, err := c.Runtime.Dial(c.ctx, id, true)
		require.NoError(t, err)
		c.hello(t, bridge)
		require.NoError(t, bridge.Close())
		require.NoError(t, c.Runtime.Remove(c.ctx, id))
	}
	c.clean(t)
}

// bytesThrough sends a request with a megabyte of every byte value; the agent reads it to its end and answers.
func bytesThrough(t *testing.T, c *contract) {
	id := c.create(t)
	bridge, err := c.Runtime.Dial(c.ctx, id, true)
	require.NoError(t, err)
	defer func() { _ = bridge.Close() }()
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i)
	}
	pr, pw := io.Pipe()
	go func() { _, _ = pw.Write(body); _ = pw.Close() }()
	req, err := http.NewRequestWithContext(c.ctx, http.MethodPost, "http://agent/v1/no-such-place", pr)
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() { sent <- req.Write(bridge) }()
	resp, err := http.ReadResponse(bufio.NewReader(bridge), req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	_ = bridge.Close()
	<-sent
}

func closesBridge(t *testing.T, c *contract) {
	id := c.create(t)
	first, err := c.Runtime.Dial(c.ctx, id, true)
	require.NoError(t, err)
	second, err := c.Runtime.Dial(c.ctx, id, true)
	require.NoError(t, err)
	c.hello(t, first)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_, _ = io.Copy(io.Discard, first)
	}()
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "closing again")
	select {
	case <-reading:
	case <-time.After(patience):
		t.Fatal("Close did not end a Read")
	}
	c.hello(t, second)
	require.NoError(t, second.Close())
}
