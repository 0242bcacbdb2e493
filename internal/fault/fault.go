// Package fault owns the kinds of error that Sandgate shows to people and programs, and the public sentence that goes
// with each. It must never decide an HTTP status or print a cause: writers do that, and only Public leaves the host.
package fault

import (
	"errors"
	"fmt"
)

// Kind is the machine-readable word of an error; it is the "code" of a JSON error body.
type Kind string

// The kinds, each with the status that the REST face answers (the table is in handlers).
const (
	BadRequest      Kind = "bad_request"           // 400: malformed JSON, special file, directory where a file is meant
	Unauthenticated Kind = "unauthenticated"       // 401
	Forbidden       Kind = "forbidden"             // 403
	ApprovalDenied  Kind = "approval_denied"       // 403
	NotFound        Kind = "not_found"             // 404, the same body for foreign and unknown ids
	ApprovalNeeded  Kind = "approval_required"     // 409
	Conflict        Kind = "conflict"              // 409
	QuotaExceeded   Kind = "quota_exceeded"        // 409
	SandboxDied     Kind = "sandbox_died"          // 409, with "reason"
	Precondition    Kind = "precondition_failed"   // 412
	TooLarge        Kind = "too_large"             // 413
	Range           Kind = "range_not_satisfiable" // 416
	Invalid         Kind = "invalid"               // 422, with "fields"
	SlowDown        Kind = "slow_down"             // 429, only for what clears within 30 s
	HostFull        Kind = "host_full"             // 503
	Starting        Kind = "starting"              // 503
	Internal        Kind = "internal"              // 500: everything that is not a *Error
)

// Error is an error that is safe to show. Public is a whole sentence for people; the cause is for the log alone.
type Error struct {
	Kind   Kind
	Public string
	Fields map[string]string // for Invalid: field name to what is wrong with it
	Extra  map[string]any    // further top-level keys of the JSON body, e.g. "reason"
	cause  error
}

// Error gives the text for logs: public sentence and cause.
func (e *Error) Error() string {
	if e.cause != nil {
		return string(e.Kind) + ": " + e.Public + ": " + e.cause.Error()
	}
	return string(e.Kind) + ": " + e.Public
}

// Unwrap gives the private cause, which may be nil.
func (e *Error) Unwrap() error { return e.cause }

// New makes an error of a kind with a public sentence.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Public: fmt.Sprintf(format, args...)}
}

// Wrap keeps a private cause beside the public sentence.
func Wrap(cause error, k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Public: fmt.Sprintf(format, args...), cause: cause}
}

// Field makes an Invalid error about one field.
func Field(name, format string, args ...any) *Error {
	msg := fmt.Sprintf(format, args...)
	return &Error{Kind: Invalid, Public: name + ": " + msg, Fields: map[string]string{name: msg}}
}

// With adds one top-level key of the JSON body and returns e.
func (e *Error) With(key string, v any) *Error {
	if e.Extra == nil {
		e.Extra = map[string]any{}
	}
	e.Extra[key] = v
	return e
}

// KindOf gives the kind of any error; Internal for what is not of ours, "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// Public gives the sentence that may leave the host; one fixed sentence for what is not of ours.
func Public(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Public
	}
	return "Something went wrong on our side. The request id finds it in the server's log."
}
