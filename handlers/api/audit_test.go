package api

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/audit"
)

func TestRecordOverREST(t *testing.T) {
	b := start(t)
	a := b.do("GET", "/v1/audit?from=2026-11-30T00:00:00Z&to=2026-12-01T00:00:00%2B01:00&actor=ann&action=command.&outcome=ok&sandbox_id=sbaaaaaaaaaaaaaaaaaaaa&q=a+b&limit=3&cursor=77", "")
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, audit.Filter{
		From: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), To: b.f.asked.To, Actor: "ann", Action: "command.", Outcome: "ok",
		SandboxID: "sbaaaaaaaaaaaaaaaaaaaa", Q: "a b", Limit: 3, BeforeSeq: 77,
	}, b.f.asked)
	require.True(t, b.f.asked.To.Equal(time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)))
	var page struct {
		Items  []map[string]any
		Cursor *string
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &page))
	require.Len(t, page.Items, 3)
	for _, item := range page.Items { // what the contract names is always there
		for _, name := range []string{
			"seq", "at", "actor", "address", "sandbox_id", "action", "target", "outcome", "duration", "digest", "approval_id", "request_id", "detail",
		} {
			require.Contains(t, item, name)
		}
	}
	require.Equal(t, "5", *page.Cursor)
	require.Equal(t, []any{7.0, "nightly", "ann@example.org", 1.0, "none"}, []any{
		page.Items[1]["seq"], page.Items[1]["actor"], page.Items[1]["owner"], page.Items[1]["duration"], page.Items[1]["old_digest"],
	})
	require.Equal(t, []any{"started", nil, nil}, []any{page.Items[0]["outcome"], page.Items[0]["duration"], page.Items[0]["ended_at"]})
	require.Contains(t, b.do("GET", "/v1/audit", "").body, `"cursor":null`)
	for _, bad := range []string{
		"from=yesterday", "to=9999-99-99T00:00:00Z", "cursor=0", "cursor=-1", "cursor=x", "cursor=9999999999999999999", "limit=0", "limit=501", "sandbox_id=x", "q=" + strings.Repeat("x", 201),
	} {
		require.Equal(t, 422, b.do("GET", "/v1/audit?"+bad, "").status, bad)
	}
	require.Equal(t, 200, b.do("GET", "/v1/audit?q=%00%ff%22*&actor=%ff", "").status)
}
