package api

import "net/http"

// Secret gives the API key of a request by the rules of every face that takes keys: X-API-Key or Authorization: Bearer, not
// two that differ, and never beside a cookie of a sign-in.
func Secret(r *http.Request) (string, error) { return secretOf(r) }
