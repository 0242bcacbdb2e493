package api

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/term/recording"
)

func init() { openapi3filter.RegisterBodyDecoder(asciicast, openapi3filter.FileBodyDecoder) }

const knownRecording = "recaaaaaaaaaaaaaaaaaaaa"

const castText = `{"version":3,"term":{"cols":80,"rows":24,"type":"xterm-256color"},"timestamp":1}` + "\n" + `[0.5, "o", "hi"]` + "\n"

type cast struct{ *strings.Reader }

func (cast) Close() error { return nil }

var _ io.ReadSeekCloser = cast{}

func oneRecording() workspace.Recording {
	return workspace.Recording{Recording: recording.Recording{
		ID: knownRecording, SandboxID: knownID, Label: "box", PTY: knownPTY, Part: 1, ByKind: "person", By: "ann", StartedAt: time.Unix(100, 5000), Bytes: 7,
	}}
}

func (f *fake) RecordingPolicy(context.Context, auth.Actor) (workspace.RecordingPolicy, error) {
	return recording.DefaultPolicy(), f.saw("RecordingPolicy", "")
}

func (f *fake) SetRecordingPolicy(_ context.Context, _ auth.Actor, p workspace.RecordingPolicy) (workspace.RecordingPolicy, error) {
	if err := p.Check(); err != nil {
		return p, err
	}
	return p, f.saw("SetRecordingPolicy", "")
}

func (f *fake) Recordings(_ context.Context, _ auth.Actor, q workspace.RecordingFilter) ([]workspace.Recording, error) {
	f.tapes = q
	return []workspace.Recording{oneRecording()}, f.saw("Recordings", "")
}

func (f *fake) Recording(_ context.Context, _ auth.Actor, id string) (workspace.Recording, error) {
	if id != knownRecording {
		return workspace.Recording{}, fault.New(fault.NotFound, "Recording not found")
	}
	return oneRecording(), f.saw("Recording", "")
}

func (f *fake) PlayRecording(ctx context.Context, a auth.Actor, id string) (workspace.Playback, error) {
	r, err := f.Recording(ctx, a, id)
	return workspace.Playback{Recording: r, ReadSeekCloser: cast{strings.NewReader(castText)}, Size: int64(len(castText)), Modified: time.Unix(200, 0)}, err
}

func (f *fake) DeleteRecording(ctx context.Context, a auth.Actor, id string) error {
	_, err := f.Recording(ctx, a, id)
	return err
}

func TestRecordings(t *testing.T) {
	b := start(t)
	got := b.do("GET", "/v1/recordings?sandbox_id="+knownID+"&limit=1&cursor=100000005."+knownRecording, "")
	require.Equal(t, 200, got.status, got.body)
	require.Contains(t, got.body, `"cursor":"100000005.`+knownRecording+`"`)
	require.Equal(t, knownID, b.f.tapes.SandboxID)
	require.Equal(t, knownRecording, b.f.tapes.BeforeID)
	require.EqualValues(t, 100000005, b.f.tapes.Before.UnixMicro())
	for _, bad := range []string{"sandbox_id=x", "limit=0", "cursor=x", "cursor=1.2"} {
		require.Equal(t, 422, b.do("GET", "/v1/recordings?"+bad, "").status, bad)
	}

	got = b.do("GET", "/v1/recordings/"+knownRecording+"/cast", "")
	require.Equal(t, castText, got.body)
	require.Equal(t, "application/x-asciicast", got.header.Get("Content-Type"))
	require.Contains(t, got.header.Get("Content-Disposition"), "attachment")
	require.Contains(t, got.header.Get("Content-Disposition"), knownRecording+".cast")
	require.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
	require.Contains(t, got.header.Get("Content-Security-Policy"), "sandbox")
	got = b.do("GET", "/v1/recordings/"+knownRecording+"/cast", "", "Range", "bytes=0-1")
	require.Equal(t, 206, got.status)
	require.Equal(t, `{"`, got.body)
	require.Equal(t, 404, b.do("GET", "/v1/recordings/recbbbbbbbbbbbbbbbbbbbb/cast", "").status)

	b.f.keys["admin"] = auth.Permissions{auth.MembersManage}
	got = b.do("PUT", "/v1/recording-policy", `{"mode":"always","max_mb":10}`, "X-API-Key", "admin")
	require.JSONEq(t, `{"mode":"always","input":false,"max_mb":10,"total_mb":2048,"keep_days":90}`, got.body)
	for body, field := range map[string]string{`{"mode":"x"}`: "mode", `{"max_mb":0}`: "max_mb", `{"max_mb":10,"total_mb":9}`: "total_mb", `{"input":"yes"}`: "input", `{"keep":1}`: "keep"} {
		assertError(t, b.do("PUT", "/v1/recording-policy", body, "X-API-Key", "admin"), "invalid", field)
	}
}
