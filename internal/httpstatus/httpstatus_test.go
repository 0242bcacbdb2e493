package httpstatus_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/internal/httpstatus"
)

func TestEveryKindHasItsStatus(t *testing.T) {
	want := map[fault.Kind]int{
		fault.BadRequest: 400, fault.Unauthenticated: 401, fault.Forbidden: 403, fault.ApprovalDenied: 403, fault.NotFound: 404,
		fault.ApprovalNeeded: 409, fault.Conflict: 409, fault.QuotaExceeded: 409, fault.SandboxDied: 409, fault.Precondition: 412,
		fault.TooLarge: 413, fault.Range: 416, fault.Invalid: 422, fault.SlowDown: 429, fault.HostFull: 503, fault.Starting: 503,
		fault.Internal: 500,
	}
	for kind, status := range want {
		require.Equal(t, status, httpstatus.Of(kind), string(kind))
	}
	require.Equal(t, 500, httpstatus.Of("never heard of"))
	require.Equal(t, 500, httpstatus.OfError(errors.New("private")))
	require.Equal(t, 200, httpstatus.OfError(nil))
	require.Equal(t, 404, httpstatus.OfError(fault.New(fault.NotFound, "Sandbox not found")))
}
