package api

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// execution is what is told of a command that has ended, beside its output.
type execution struct {
	ExitCode  int     `json:"exit_code"`
	TimedOut  bool    `json:"timed_out"`
	Truncated bool    `json:"truncated"`
	Duration  float64 `json:"duration"`
	ID        string  `json:"id"`
	// Of a call that failed after its status was sent; see runCommand.
	Code   string `json:"code,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// collector keeps a command's output, up to the contract's limit for each stream whatever the sandbox sends.
type collector struct{ stdout, stderr spool }

func (s *server) collector() *collector {
	return &collector{spool{dir: s.spoolDir, limit: agent.MaxOutput}, spool{dir: s.spoolDir, limit: agent.MaxOutput}}
}

// Stdout implements agent.Output.
func (k *collector) Stdout(p []byte) error { _, err := k.stdout.Write(p); return err }

// Stderr implements agent.Output.
func (k *collector) Stderr(p []byte) error { _, err := k.stderr.Write(p); return err }

func (k *collector) texts() []longText {
	return []longText{{name: "stdout", from: &k.stdout}, {name: "stderr", from: &k.stderr}}
}

func (k *collector) close() { k.stdout.close(); k.stderr.close() }

// outcome is how a call of the service ended.
type outcome struct {
	exit agent.Exit
	err  error
}

// runCommand answers when the command has ended. The official client gives up after 120 s without a byte, whatever time
// the command was given, so after some silence the status goes out and white space follows now and then: it may stand
// before JSON. From then on an error can no longer change the status, and is told in the body.
func (s *server) runCommand(c echo.Context, spec agent.CommandSpec) error {
	ctx, release := s.svc.Guard(c.Request().Context(), actor(c), auth.SandboxesRun)
	defer release()
	out := s.collector()
	defer out.close()
	results := make(chan outcome, 1)
	a, id := actor(c), c.Param("id")
	go func() {
		exit, err := s.protected(c, func() (agent.Exit, error) { return s.svc.RunCommand(ctx, a, id, spec, out) })
		results <- outcome{exit, err}
	}()
	r, late := s.await(c, results)
	if r.err != nil {
		r.err = causeOf(ctx, r.err)
		if !late {
			return r.err
		}
		s.note(c, http.StatusOK, r.err)
	}
	b := execution{
		ExitCode: r.exit.Code, TimedOut: r.exit.TimedOut, Truncated: r.exit.Truncated || out.stdout.cut || out.stderr.cut,
		Duration: r.exit.Duration, ID: spec.ID,
	}
	if r.err != nil {
		b.ExitCode, b.Code, b.Detail = lateExit(r.err), string(fault.KindOf(r.err)), fault.Public(r.err)
	}
	if !late {
		c.Response().Header().Set(echo.HeaderContentType, "application/json")
		c.Response().WriteHeader(http.StatusOK)
	}
	return writeLong(c.Response(), out.texts(), b)
}

// await waits for the outcome and keeps the client waiting with it; late reports that the status is out.
func (s *server) await(c echo.Context, results <-chan outcome) (r outcome, late bool) {
	tick := time.NewTicker(s.keepAlive)
	defer tick.Stop()
	passed, waits := passedOf(c), time.Now()
	for {
		select {
		case r := <-results:
			return r, late
		case <-passed:
			// Until then a refusal gets a status of its own, however long an approval is waited for.
			if passed = nil; time.Since(waits) > s.keepAlive {
				tick.Reset(time.Millisecond) // the client has waited for long
			}
		case <-tick.C:
			if passed != nil {
				continue
			}
			tick.Reset(s.keepAlive)
			if !late {
				late = true
				c.Response().Header().Set(echo.HeaderContentType, "application/json")
				c.Response().WriteHeader(http.StatusOK)
			}
			// A client that is gone ends the request's context, and with it the command; nothing is to be done here.
			_, _ = c.Response().Write([]byte(" "))
			_ = http.NewResponseController(c.Response().Writer).Flush()
		}
	}
}

// lateExit is the exit code that stands for an error: the command was killed with its sandbox or by our loss of it.
func lateExit(err error) int {
	switch fault.KindOf(err) {
	case fault.SandboxDied, fault.NotFound, fault.Forbidden, fault.Unauthenticated:
		return 137
	}
	return 255
}

// protected turns a panic on another goroutine into an error, for the middleware cannot see it there.
func (s *server) protected(c echo.Context, do func() (agent.Exit, error)) (exit agent.Exit, err error) {
	err = s.recovered(func(echo.Context) error {
		var rerr error
		exit, rerr = do()
		return rerr
	})(c)
	return exit, err
}
