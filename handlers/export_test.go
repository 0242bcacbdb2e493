package handlers

import "github.com/labstack/echo/v4"

// Row is a row of the route table as the test outside reads it.
type Row struct {
	Method, Path  string
	Need          int
	Person        bool
	Public        string
	Action        string
	Stream, IsRaw bool
}

// Table gives the route table.
func (s *Server) Table() []Row {
	var out []Row
	for _, r := range s.routes() {
		out = append(out, Row{r.method, r.path, len(r.need), r.person, r.public, r.action, r.stream, r.raw != nil})
	}
	return out
}

// Routes gives what Echo answers.
func (s *Server) Routes() []*echo.Route { return s.echo.Routes() }

// LocalPath, Pretty and Ago are tested as they are.
var (
	LocalPath = localPath
	Size      = size
	Ago       = ago
)
