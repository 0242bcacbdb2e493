package handlers_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox/effect"
)

const (
	anAsk   = "apaaaaaaaaaaaaaaaaaaaa"
	another = "apbbbbbbbbbbbbbbbbbbbb"
	queue   = "/w/research/approvals"
)

// asking is a service with two requests for the same command, a write, and a person who decides.
func asking() *fake {
	f := furnished()
	f.rights["bob"] = auth.Permissions{auth.SandboxesRead, auth.ApprovalsDecide}
	command := approval.Request{
		Action: "command.run", Kind: approval.Command, Requester: approval.Requester{Kind: auth.KeyUser, Name: "ci " + hostile}, Reason: "nightly " + hostile,
		Params: map[string]string{"command": "rm -rf \u202eout; echo \u0430 " + hostile, "cwd": "/work", "user": "root", "timeout_ms": "60000"},
		Env:    map[string]string{"A": hostile}, Secrets: []string{"TOKEN"}, Unbound: []string{"what " + hostile + " fetches"},
		Before: []approval.Past{{At: now, Action: "file.write", Target: hostile, Outcome: "ok"}},
	}
	one := func(id string, r approval.Request) workspace.Approval {
		return workspace.Approval{
			Record: approval.Record{
				ID: id, SandboxID: sbRunning, Kind: r.Kind, Status: approval.Pending, Digest: "d-" + id, Asked: "same", CreatedAt: now, ExpiresAt: now.Add(approval.DecideWithin),
			},
			Request: r, Tryable: r.Kind == approval.Command, Waiting: true,
		}
	}
	f.approvals = []workspace.Approval{one(anAsk, command), one(another, command)}
	return f
}

func TestARequestIsShownAsItIs(t *testing.T) {
	f := asking()
	h := server(t, f)
	body := ask(h, "GET", queue, nil, "who", "bob").Body.String()
	require.NotContains(t, body, hostile)
	require.NotContains(t, body, "\u202e", "what cannot be seen is spelled out")
	require.Contains(t, body, `\u{202E}`)
	require.Contains(t, body, "It holds 4 characters that cannot be seen.")
	require.Contains(t, body, `class="p-odd" title="U+0430`)
	require.Contains(t, body, "No shell takes it as it stands", "what cannot be taken apart is not coloured")
	require.Contains(t, body, "(2) Approvals")
	require.Contains(t, body, "TOKEN")
	require.Contains(t, body, "its value is not shown")
	require.Contains(t, body, "and the 1 others that ask for the very same")
	require.Contains(t, body, "Not bound by a yes")
	require.Contains(t, body, `value="d-`+anAsk+`"`, "the decision names the digest")

	f.approvals[0].Request.Params["command"] = "rm -rf out | sh"
	body = ask(h, "GET", queue, nil, "who", "bob").Body.String()
	require.Contains(t, body, `class="p-bad" title="deletes files">rm<`)
	require.Contains(t, body, `title="what comes out of the left is run as a program">|<`)

	f.approvals[0].WhyNot = "nobody decides about their own request"
	body = ask(h, "GET", queue+"/"+anAsk, nil, "who", "bob").Body.String()
	require.Contains(t, body, "You cannot decide about this")
	require.NotContains(t, body, queue+"/"+anAsk+"/approve")
	require.Equal(t, 404, ask(h, "GET", queue+"/apcccccccccccccccccccc", nil, "who", "bob").Code)
}

func TestDeciding(t *testing.T) {
	f := asking()
	h := server(t, f)
	at := queue + "/" + anAsk
	require.Equal(t, 403, ask(h, "POST", at+"/approve", url.Values{"digest": {"d"}}, "who", "ana").Code, "an administrator decides nothing")
	require.Equal(t, 422, ask(h, "POST", at+"/approve", url.Values{}, "who", "bob").Code, "nothing is approved unseen")
	w := ask(h, "POST", at+"/approve", url.Values{"digest": {"d-" + anAsk}, "same": {"1"}, "with": {another + " d-" + another}}, "who", "bob")
	require.Equal(t, 303, w.Code)
	require.Subset(t, f.called(), []string{"approve " + anAsk + " d-" + anAsk, "approve " + another + " d-" + another})

	require.Contains(t, ask(h, "GET", at+"/deny", nil, "who", "bob").Body.String(), "stop asking")
	w = ask(h, "POST", at+"/deny", url.Values{"reason": {"no"}}, "who", "bob")
	require.Equal(t, 303, w.Code)
	w = ask(h, "POST", at+"/deny", url.Values{"reason": {"never"}, "stop": {"1"}}, "who", "bob")
	require.Equal(t, 303, w.Code)
	w = ask(h, "POST", at+"/try", url.Values{}, "who", "bob")
	require.Equal(t, 303, w.Code)
	require.Subset(t, f.called(), []string{"deny " + anAsk + " no", "deny and stop " + anAsk + " never", "try " + anAsk})

	f.fail = fault.New(fault.ApprovalNeeded, "Repeat it with the header.").With("approval_id", anAsk)
	w = ask(h, "POST", page+"/"+sbRunning+"/fork", url.Values{})
	require.Equal(t, 409, w.Code)
	require.Contains(t, w.Body.String(), "do the same again")
	require.Contains(t, w.Body.String(), at)
	f.fail = fault.New(fault.Conflict, "The request was denied already, by eve.")
	w = ask(h, "POST", at+"/approve", url.Values{"digest": {"d-" + anAsk}}, "who", "bob")
	require.Equal(t, 409, w.Code)
	require.Contains(t, w.Body.String(), "denied already, by eve")
	require.Contains(t, w.Body.String(), "data-request", "with the request as it is now")
	w = ask(h, "POST", at+"/deny", url.Values{"reason": {"typed long"}}, "who", "bob")
	require.Equal(t, 422, w.Code)
	require.Contains(t, w.Body.String(), "typed long", "what was typed is not lost")
}

func TestAWriteIsComparedWithWhatItReplaces(t *testing.T) {
	f := asking()
	old, content := []byte("one\ntwo\nthree\n"), []byte("one\nTWO \u202e<script>\nthree\n")
	f.content[anAsk+"/old"], f.content[anAsk+"/content"] = old, content
	a := &f.approvals[0]
	a.Kind, a.Tryable = approval.Write, false
	a.Request = approval.Request{
		Kind: approval.Write, Action: "file.write", Params: map[string]string{"path": "/work/link"}, State: map[string]string{"path": "/etc/issue"},
		Blobs: []approval.Blob{approval.NewBlob(approval.BlobContent, content, true, true), approval.NewBlob(approval.BlobOld, old, false, false)},
	}
	h := server(t, f)
	w := ask(h, "GET", queue+"/"+anAsk, nil, "who", "bob")
	body := w.Body.String()
	require.NotContains(t, body, "<script>\n")
	require.NotContains(t, body, "\u202e")
	require.Contains(t, body, "/etc/issue")
	require.Contains(t, body, "As it was asked for")
	rows := all(tree(t, w), ".diff tr")
	require.Len(t, rows, 3)
	require.Equal(t, "chg", attr(rows[1], "class"))
	require.Contains(t, text(rows[1]), "two")
	require.Contains(t, text(rows[1]), "TWO")

	f.content[anAsk+"/old"], f.content[anAsk+"/content"] = []byte("\x89PNG\r\n\x1a\n old"), []byte("\x89PNG\r\n\x1a\n new")
	body = ask(h, "GET", queue+"/"+anAsk, nil, "who", "bob").Body.String()
	require.Contains(t, body, "/contents/old?image=1")
	w = ask(h, "GET", queue+"/"+anAsk+"/contents/content?image=1", nil, "who", "bob")
	require.Equal(t, "image/png", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "sandbox")
	f.content[anAsk+"/content"] = []byte("<svg onload=alert(1)>")
	require.Equal(t, 400, ask(h, "GET", queue+"/"+anAsk+"/contents/content?image=1", nil, "who", "bob").Code)
	f.content[anAsk+"/content"] = []byte("\x00\x01\x02")
	require.Contains(t, ask(h, "GET", queue+"/"+anAsk, nil, "who", "bob").Body.String(), "00 01 02")
}

func TestWhatACommandDidInACopyIsShown(t *testing.T) {
	f := asking()
	f.approvals[0].Effect = &workspace.Effect{
		At: now, By: "bob", ExitCode: 3, Stdout: "out " + hostile, Added: 1, Deleted: 1, Left: []string{"sleep " + hostile},
		Files: []effect.Change{
			{Path: "/work/" + hostile, What: effect.Added, Kind: effect.File, Size: 4, Diff: "--- a\n+++ b\n@@ -0,0 +1 @@\n+-- x\n"},
			{Path: "/usr/share/doc", What: effect.Deleted, Kind: effect.Directory, Under: 167},
		},
		Denied: []workspace.Denied{{Protocol: "tcp", Destination: "203.0.113.9", Port: 80, Count: 2}}, NotShown: []string{"the network"},
	}
	body := ask(server(t, f), "GET", queue+"/"+anAsk, nil, "who", "bob").Body.String()
	require.NotContains(t, body, hostile)
	for _, want := range []string{"deleted · directory · with 167 files in it", "203.0.113.9:80 · 2 times", "the network", "-- x", "Try again"} {
		require.Contains(t, body, want)
	}
}

func TestPoliciesAreSetByForms(t *testing.T) {
	f := asking()
	h := server(t, f)
	body := ask(h, "GET", "/w/research/policy", nil, "who", "bob").Body.String()
	require.Contains(t, body, "needs members:manage")
	require.NotContains(t, body, ">Set<")
	w := ask(h, "POST", "/w/research/policy", url.Values{
		"command": {"ask"}, "write": {"allow"}, "terminal": {"deny"}, "network": {"allow"}, "port": {"allow"},
		"rule0.answer": {"deny"}, "rule0.kind": {"command"}, "rule0.command": {"sudo *"},
		"rule1.answer": {""}, "rule1.kind": {"write"}, "rule1.path": {"/forgotten"},
		"rule2.answer": {"ask"}, "rule2.kind": {"write"}, "rule2.path": {"/etc/**"},
	})
	require.Equal(t, 303, w.Code, w.Body.String())
	require.Equal(t, approval.Policy{
		Command: approval.AskIt, Write: approval.Allow, Terminal: approval.Deny, Network: approval.Allow, Port: approval.Allow,
		Rules: []approval.Rule{{Kind: approval.Command, Answer: approval.Deny, Command: "sudo *"}, {Kind: approval.Write, Answer: approval.AskIt, Path: "/etc/**"}},
	}, f.policy)
	w = ask(h, "GET", "/w/research/policy", nil)
	require.Contains(t, w.Body.String(), `value="sudo *"`)
	w = ask(h, "POST", "/w/research/policy", url.Values{"command": {"perhaps"}})
	require.Equal(t, 422, w.Code)

	require.Contains(t, ask(h, "GET", page+"/"+sbRunning, nil).Body.String(), " data-asks", "to look is not to ask: no terminal opens by itself")
	key := "/w/research/keys/k1/policy"
	require.Contains(t, ask(h, "GET", key, nil).Body.String(), "What is asked of this key")
	require.Equal(t, 303, ask(h, "POST", key, url.Values{"command": {"ask"}}).Code)
	require.Contains(t, f.called(), "policy of key k1")

	w = ask(h, "POST", page+"/new", url.Values{"label": {"x"}, "approval.command": {"ask"}, "approval.write": {"deny"}})
	require.Equal(t, 303, w.Code)
	require.Equal(t, approval.AskIt, f.created.Approval.Command)
	require.Equal(t, approval.Deny, f.created.Approval.Write)
	require.True(t, strings.Contains(ask(h, "GET", page+"/new", nil).Body.String(), "approval.terminal"))
}
