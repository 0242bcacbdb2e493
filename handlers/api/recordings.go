package api

import (
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

// asciicast is the media type of recordings.
const asciicast = "application/x-asciicast"

type recordingBody struct {
	ID        string    `json:"id"`
	SandboxID string    `json:"sandbox_id" doc:"That may be gone."`
	Label     string    `json:"label" doc:"Of the sandbox."`
	PTY       string    `json:"pty" doc:"The terminal."`
	Part      int       `json:"part" doc:"More than 1: it goes on where the one before had become as large as one may be."`
	By        ownerBody `json:"by" doc:"Who opened the terminal, or came first to one that was not recorded yet."`
	Input     bool      `json:"input" doc:"What was typed is in it; reading it needs audit:read."`
	StartedAt string    `json:"started_at"`
	EndedAt   *string   `json:"ended_at" doc:"null: it goes on."`
	End       *string   `json:"end" doc:"exited, gone, limit, turned_off or failed."`
	Bytes     int64     `json:"bytes"`
}

type recordingsBody struct {
	Items  []recordingBody `json:"items"`
	Cursor *string         `json:"cursor" doc:"Asks for the next page, of older ones; null on the last."`
}

type recordingPolicyBody struct {
	Mode     string `json:"mode" doc:"off; on; always: a terminal that cannot be recorded does not open."`
	Input    bool   `json:"input" doc:"What is typed is recorded too, passwords among it."`
	MaxMB    int64  `json:"max_mb" doc:"MiB of one recording. Then it ends, with always it goes on in another part."`
	TotalMB  int64  `json:"total_mb" doc:"MiB of all; the oldest go first."`
	KeepDays int    `json:"keep_days" doc:"After its end."`
}

func toRecording(r workspace.Recording) recordingBody {
	return recordingBody{
		ID: r.ID, SandboxID: r.SandboxID, Label: r.Label, PTY: r.PTY, Part: r.Part, By: ownerBody{Kind: r.ByKind, Name: r.By}, Input: r.Input,
		StartedAt: stamp(r.StartedAt), EndedAt: stampOrNull(r.EndedAt), End: orNull(r.End), Bytes: r.Bytes,
	}
}

func toRecordingPolicy(p workspace.RecordingPolicy) recordingPolicyBody {
	return recordingPolicyBody{Mode: string(p.Mode), Input: p.Input, MaxMB: p.MaxMB, TotalMB: p.TotalMB, KeepDays: p.KeepDays}
}

var recordingCursor = regexp.MustCompile(`^(\d{1,17})\.(rec[a-z0-9]{20})$`)

// listRecordings: GET /v1/recordings?sandbox_id&limit&cursor.
func (s *server) listRecordings(c echo.Context) error {
	f := workspace.RecordingFilter{SandboxID: c.QueryParam("sandbox_id")}
	if f.SandboxID != "" && !sandbox.ID(f.SandboxID).Valid() {
		return fault.Field("sandbox_id", "is no id of a sandbox")
	}
	var err error
	if f.Limit, err = queryWhole(c, "limit", 1, 500, 100); err != nil {
		return err
	}
	if cursor := c.QueryParam("cursor"); cursor != "" {
		m := recordingCursor.FindStringSubmatch(cursor)
		if m == nil {
			return fault.Field("cursor", "must be one that an earlier answer gave")
		}
		us, _ := strconv.ParseInt(m[1], 10, 64) // 17 digits fit
		f.Before, f.BeforeID = time.UnixMicro(us), m[2]
	}
	list, err := s.svc.Recordings(c.Request().Context(), actor(c), f)
	if err != nil {
		return err
	}
	page := recordingsBody{Items: make([]recordingBody, 0, len(list))}
	for _, r := range list {
		page.Items = append(page.Items, toRecording(r))
	}
	if len(list) == f.Limit {
		last := list[len(list)-1]
		next := strconv.FormatInt(last.StartedAt.UnixMicro(), 10) + "." + last.ID
		page.Cursor = &next
	}
	return writeJSON(c, http.StatusOK, page)
}

// getRecording: GET /v1/recordings/{id}.
func (s *server) getRecording(c echo.Context) error {
	r, err := s.svc.Recording(c.Request().Context(), actor(c), c.Param("recording"))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toRecording(r))
}

// getCast: GET and HEAD /v1/recordings/{id}/cast, with ranges; one that goes on is there up to this moment.
func (s *server) getCast(c echo.Context) error {
	p, err := s.svc.PlayRecording(c.Request().Context(), actor(c), c.Param("recording"))
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // only read
	h := c.Response().Header()
	safeHeaders(h, p.ID+".cast")
	h.Set(echo.HeaderContentType, asciicast)
	http.ServeContent(c.Response(), c.Request(), "", p.Modified, p)
	return nil
}

// deleteRecording: DELETE /v1/recordings/{id}.
func (s *server) deleteRecording(c echo.Context) error {
	if err := s.svc.DeleteRecording(c.Request().Context(), actor(c), c.Param("recording")); err != nil {
		return err
	}
	return done(c)
}

// recordingPolicy: GET /v1/recording-policy.
func (s *server) recordingPolicy(c echo.Context) error {
	p, err := s.svc.RecordingPolicy(c.Request().Context(), actor(c))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toRecordingPolicy(p))
}

// setRecordingPolicy: PUT /v1/recording-policy. What is absent or null becomes the default.
func (s *server) setRecordingPolicy(c echo.Context) error {
	o, err := readObject(c, smallBody)
	if err != nil {
		return err
	}
	p := workspace.DefaultRecordingPolicy()
	p.Mode = workspace.RecordingMode(o.oneOf("mode", string(p.Mode), "off", "on", "always"))
	p.Input = o.flag("input", false)
	p.MaxMB, p.TotalMB = o.whole("max_mb", 1, 1024, p.MaxMB), o.whole("total_mb", 1, 1<<20, p.TotalMB)
	p.KeepDays = int(o.whole("keep_days", 1, 3650, int64(p.KeepDays)))
	if err := o.check(); err != nil {
		return err
	}
	if p, err = s.svc.SetRecordingPolicy(c.Request().Context(), actor(c), p); err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, toRecordingPolicy(p))
}
