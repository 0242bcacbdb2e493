package runsc

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sandgate/sandbox"
	"sandgate/sandbox/image"
	"sandgate/sandbox/sandboxtest"
)

// crashPlan tells the stand-in for a server when to die.
type crashPlan struct {
	Cache, DataDir, Inst, Binary, Agent string
	ID                                  sandbox.ID
	Step                                string
	After                               time.Duration // 0: at the step's intent; else so long after it
	Suspend                             bool          // suspends ID, which runs, instead of making it
}

// crash creates or suspends a sandbox and is killed on the way, as kill -9 would.
func crash() {
	var p crashPlan
	if err := json.Unmarshal([]byte(os.Getenv("SANDGATE_TEST_CRASH")), &p); err != nil {
		panic(err)
	}
	images, err := image.Open(p.Cache)
	if err != nil {
		panic(err)
	}
	r, err := New(Options{Binary: p.Binary, AgentBinary: p.Agent, Images: images, DataDir: p.DataDir, Inst: p.Inst})
	if err != nil {
		panic(err)
	}
	die := func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }
	journal := func(step string) error {
		if step == p.Step && p.After == 0 {
			die()
		} else if step == p.Step {
			time.AfterFunc(p.After, die)
		}
		return nil
	}
	if p.Suspend {
		err = r.Suspend(context.Background(), p.ID, journal)
	} else {
		err = r.Create(context.Background(), sandbox.Spec{ID: p.ID, Image: "base", Hostname: "crash", Resources: small}, journal)
	}
	fmt.Println("not killed:", err)
	if p.Step == "" { // with the sandbox running and a bridge open
		b, err := r.Dial(context.Background(), p.ID, true)
		if err == nil {
			_, err = b.Write([]byte("GET /v1/hello HTTP/1.1\r\nHost: agent\r\n\r\n"))
		}
		if err == nil {
			_, err = b.Read(make([]byte, 1))
		}
		fmt.Println("bridge:", err)
		die()
	}
	select {}
}

func TestServerKilledAtEachStepLeavesNothingAfterTheNextStart(t *testing.T) {
	o := options(t)
	r := open(t, o)
	plan := crashPlan{Cache: cacheOf(o), DataDir: o.DataDir, Inst: o.Inst, Binary: o.Binary, Agent: o.AgentBinary}
	for _, s := range r.steps(sandbox.Spec{}, image.Image{}) {
		for _, after := range []time.Duration{0, time.Millisecond, 15 * time.Millisecond, 60 * time.Millisecond} {
			plan.ID, plan.Step, plan.After = sandbox.NewID(), s.name, after
			killed(t, plan)
			// The next start.
			r, err := New(o)
			require.NoError(t, err)
			found, err := r.Found(t.Context())
			require.NoError(t, err)
			for _, id := range found {
				require.NoError(t, r.Remove(t.Context(), id))
			}
			left, err := sandboxtest.Census(o.Inst, o.DataDir)
			require.NoError(t, err)
			require.Empty(t, left, "killed at %q after %s", s.name, after)
			require.NoError(t, r.Close())
		}
	}
}

func TestSandboxOutlivesTheServer(t *testing.T) {
	o := options(t)
	r := open(t, o)
	plan := crashPlan{Cache: cacheOf(o), DataDir: o.DataDir, Inst: o.Inst, Binary: o.Binary, Agent: o.AgentBinary, ID: sandbox.NewID()}
	killed(t, plan)
	alive, err := r.Alive(t.Context(), plan.ID)
	require.NoError(t, err)
	require.True(t, alive)
	out, err := inside(t.Context(), r, plan.ID, "echo still here")
	require.NoError(t, err)
	require.Equal(t, "still here\n", out)
	require.Eventually(t, func() bool {
		found, args, err := r.strays(string(plan.ID))
		require.NoError(t, err)
		return len(found) == 2 && !slices.ContainsFunc(found, func(p proc) bool { return slices.Contains(args[p.PID], "exec") })
	}, 60*time.Second, 20*time.Millisecond, "the bridges of a dead server end by themselves")
	deaths := wait(t, r, plan.ID)
	st, err := r.load(plan.ID)
	require.NoError(t, err)
	require.NoError(t, unix.Kill(st.Sentry.PID, unix.SIGKILL))
	require.Equal(t, sandbox.ReasonKilled, (<-deaths).Reason)
}

func cacheOf(o Options) string { return o.Images.Dir() + "/.." }

func killed(t *testing.T, p crashPlan) {
	t.Helper()
	b, err := json.Marshal(p)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), "SANDGATE_TEST_CRASH="+string(b))
	if p.Step != "" && p.After > 0 {
		// A step that is faster than the delay lets the creation end first; the timer kills all the same.
		cmd.Env = append(cmd.Env, "SANDGATE_TEST_AFTER="+strconv.FormatInt(int64(p.After), 10))
	}
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s", out)
	require.NoError(t, ctx.Err(), "%s", out)
}
