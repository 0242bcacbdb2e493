// Package httpstatus owns the one table from error kinds to HTTP statuses, for pages and REST alike. It must never
// hold anything else: no writers, no messages.
package httpstatus

import (
	"net/http"

	"sandgate/internal/fault"
)

// table has every kind; a kind without a row is a bug that the test finds, and answers 500.
var table = map[fault.Kind]int{
	fault.BadRequest:      http.StatusBadRequest,
	fault.Unauthenticated: http.StatusUnauthorized,
	fault.Forbidden:       http.StatusForbidden,
	fault.ApprovalDenied:  http.StatusForbidden,
	fault.NotFound:        http.StatusNotFound,
	fault.ApprovalNeeded:  http.StatusConflict,
	fault.Conflict:        http.StatusConflict,
	fault.QuotaExceeded:   http.StatusConflict,
	fault.SandboxDied:     http.StatusConflict,
	fault.Precondition:    http.StatusPreconditionFailed,
	fault.TooLarge:        http.StatusRequestEntityTooLarge,
	fault.Range:           http.StatusRequestedRangeNotSatisfiable,
	fault.Invalid:         http.StatusUnprocessableEntity,
	fault.SlowDown:        http.StatusTooManyRequests,
	fault.HostFull:        http.StatusServiceUnavailable,
	fault.Starting:        http.StatusServiceUnavailable,
	fault.Internal:        http.StatusInternalServerError,
}

// Of gives the status of a kind; 500 for a kind it does not know.
func Of(k fault.Kind) int {
	if s, ok := table[k]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// OfError gives the status of an error by its kind; 500 for what is not of ours, 200 for nil.
func OfError(err error) int {
	if err == nil {
		return http.StatusOK
	}
	return Of(fault.KindOf(err))
}
