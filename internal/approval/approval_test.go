package approval_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
)

// Until policies exist the gate lets everything through, whoever asks for whatever.
func TestOpenLetsAllThrough(t *testing.T) {
	var gate approval.Gate = approval.Open{}
	for _, k := range []approval.Kind{approval.Command, approval.Write, approval.Terminal, approval.Network, approval.Port, approval.Other} {
		require.NoError(t, gate.Pass(context.Background(), auth.Actor{}, approval.Action{Kind: k, Name: "command.run"}))
	}
}
