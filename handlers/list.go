package handlers

// Route is one row of the table as a stranger sees it.
type Route struct{ Method, Path string }

// Routes lists everything that the pages answer, for tests that walk all of it.
func Routes() []Route {
	var out []Route
	for _, r := range (&Server{}).routes() {
		out = append(out, Route{r.method, r.path})
	}
	return out
}
