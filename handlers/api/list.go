package api

// Route is one row of the table as a stranger sees it.
type Route struct{ Method, Path string }

// Routes lists every call, for tests that walk all of them.
func Routes() []Route {
	var out []Route
	for _, r := range (&server{}).routes() {
		out = append(out, Route{r.method, r.path})
	}
	return out
}
