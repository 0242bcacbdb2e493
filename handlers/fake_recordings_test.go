package handlers_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/term/recording"
)

const aRecording = "recaaaaaaaaaaaaaaaaaaaa"

type cast struct{ *strings.Reader }

func (cast) Close() error { return nil }

func oneRecording() workspace.Recording {
	return workspace.Recording{Recording: recording.Recording{
		ID: aRecording, SandboxID: sbRunning, Label: hostile, PTY: "ptyaaaaaaaaaaaaaaaaaaaa", Part: 2, ByKind: "person", By: "ann", Input: true,
		StartedAt: time.Unix(1000, 0), EndedAt: time.Unix(1060, 0), End: recording.EndExited, Bytes: 5 << 20,
	}}
}

func (f *fake) RecordingPolicy(context.Context, auth.Actor) (workspace.RecordingPolicy, error) {
	return recording.DefaultPolicy(), nil
}

func (f *fake) SetRecordingPolicy(_ context.Context, _ auth.Actor, p workspace.RecordingPolicy) (workspace.RecordingPolicy, error) {
	if err := p.Check(); err != nil {
		return p, err
	}
	return p, f.note("recording policy " + string(p.Mode))
}

func (f *fake) Recordings(context.Context, auth.Actor, workspace.RecordingFilter) ([]workspace.Recording, error) {
	return []workspace.Recording{oneRecording(), oneRecording()}, nil
}

func (f *fake) Recording(_ context.Context, _ auth.Actor, id string) (workspace.Recording, error) {
	if id != aRecording {
		return workspace.Recording{}, fault.New(fault.NotFound, "Recording not found")
	}
	return oneRecording(), nil
}

func (f *fake) PlayRecording(ctx context.Context, a auth.Actor, id string) (workspace.Playback, error) {
	r, err := f.Recording(ctx, a, id)
	return workspace.Playback{Recording: r, ReadSeekCloser: cast{strings.NewReader("{}\n")}, Size: 3}, err
}

func (f *fake) DeleteRecording(_ context.Context, _ auth.Actor, id string) error {
	return f.note("delete recording " + id)
}

func TestRecordingsAreListedPlayedAndDeleted(t *testing.T) {
	f := furnished()
	h := server(t, f)
	at := "/w/research/recordings"
	require.Contains(t, ask(h, "GET", page+"/"+sbRunning, nil).Body.String(), at+"?sandbox="+sbRunning)
	body := ask(h, "GET", at+"?sandbox="+sbRunning, nil).Body.String()
	require.Contains(t, body, at+"/"+aRecording)
	require.Contains(t, body, "part 2")
	require.Contains(t, body, "not recorded", "what holds is said")
	require.NotContains(t, body, hostile)

	w := ask(h, "GET", at+"/"+aRecording, nil)
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), `data-player="`+at+"/"+aRecording+`/cast"`)
	require.Contains(t, w.Body.String(), "What was typed is in this recording")
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "script-src 'self' 'wasm-unsafe-eval';")
	require.NotContains(t, ask(h, "GET", at, nil).Header().Get("Content-Security-Policy"), "wasm", "no other page may")
	require.Equal(t, 404, ask(h, "GET", at+"/recbbbbbbbbbbbbbbbbbbbb", nil).Code)

	w = ask(h, "GET", at+"/"+aRecording+"/cast", nil)
	require.Equal(t, "{}\n", w.Body.String())
	require.Equal(t, "application/x-asciicast", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Content-Disposition"), "attachment")
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))

	require.Contains(t, ask(h, "GET", at+"/"+aRecording+"/delete", nil).Body.String(), "brought back")
	require.Equal(t, 303, ask(h, "POST", at+"/"+aRecording+"/delete", url.Values{}).Code)
	require.Contains(t, f.called(), "delete recording "+aRecording)
}

func TestWhatIsRecordedIsSetOnAPage(t *testing.T) {
	f := furnished()
	h := server(t, f)
	at := "/w/research/recording-policy"
	body := ask(h, "GET", at, nil).Body.String()
	require.Contains(t, body, "One that cannot be recorded does not open")
	require.Contains(t, body, `value="off" checked`)
	form := url.Values{"mode": {"always"}, "input": {"1"}, "max_mb": {"10"}, "total_mb": {"100"}, "keep_days": {"7"}}
	require.Equal(t, 303, ask(h, "POST", at, form).Code)
	require.Contains(t, f.called(), "recording policy always")
	form.Set("keep_days", "soon")
	w := ask(h, "POST", at, form)
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "between 1 and 3650")
	require.Contains(t, w.Body.String(), `value="always" checked`)
	f.rights["looker"] = auth.Permissions{auth.SandboxesRead}
	require.Equal(t, 403, ask(h, "GET", at, nil, "who", "looker").Code)
}
