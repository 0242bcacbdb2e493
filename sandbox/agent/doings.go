package agent

import (
	"context"
	"fmt"
	"math"
	"net/http"
)

// MaxDoings is how many background commands Doings names.
const MaxDoings = 1000

// Doings is what runs inside: GET /v1/doings.
type Doings struct {
	Background []string `json:"background"` // ids of background commands that run
	Foreground int      `json:"foreground"` // others, of callers that may be gone
	Terminals  int      `json:"terminals"`  // terminals in which a program runs, not the waiting shell alone
}

func (d Doings) check() error {
	if len(d.Background) > MaxDoings || d.Foreground < 0 || d.Terminals < 0 {
		return fmt.Errorf("agent: impossible doings")
	}
	for _, id := range d.Background {
		if !validID(id) {
			return fmt.Errorf("agent: doings with an id that is none")
		}
	}
	return nil
}

// Doings asks what runs.
func (c *Client) Doings(ctx context.Context) (Doings, error) {
	return one[Doings](ctx, c, call{method: http.MethodGet, path: "/v1/doings", repeat: true})
}

// Await waits for a command's end without its output.
func (c *Client) Await(ctx context.Context, id string) (Exit, error) {
	return c.Follow(ctx, id, math.MaxInt64, math.MaxInt64, &collect{})
}
