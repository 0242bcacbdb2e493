package agent_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// Root inside may stop process 1: a command must not be held for minutes beyond its time-out by that.
func TestStoppedAgentHoldsNoCommandFarBeyondItsTimeout(t *testing.T) {
	t.Cleanup(agent.SetOverdue(300 * time.Millisecond))
	for name, h := range map[string]http.HandlerFunc{
		"never answers": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"stops after the start": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				_, _ = w.Write([]byte{byte(agent.FramePing), 0, 0, 0, 0})
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := liar(t, h, nil).Run(ctx, agent.CommandSpec{ID: "cmd1", Command: "x", TimeoutMS: 100}, &sink{})
			require.ErrorIs(t, err, agent.ErrBridge)
			require.NoError(t, ctx.Err(), "it came back by itself")
		})
	}
}
