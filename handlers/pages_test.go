package handlers_test

import (
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"sandgate/auth"
	"sandgate/handlers"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
)

func TestList(t *testing.T) {
	h := server(t, furnished())
	n := tree(t, ask(h, "GET", page, nil))
	rows := all(n, "tbody tr[data-id]")
	require.Len(t, rows, 5)
	require.Equal(t, "churn-notebook", text(all(rows[0], "a.name")[0]))
	require.Equal(t, page+"/"+sbRunning, attr(all(rows[0], "a.name")[0], "href"))
	require.Len(t, all(n, ".st.bad"), 1)
	require.Contains(t, text(rows[4]), "out of memory")
	require.Empty(t, all(rows[3], "input[name=id]"), "what is stopping can't be selected")
	require.Equal(t, page+"/events", attr(one(t, n, "[sse-connect]"), "sse-connect"))
	require.Equal(t, "page", attr(one(t, n, `a.nav-link[href="/w/research/sandboxes"]`), "aria-current"))
	one(t, n, `a[href="/w/research/sandboxes/new"]`)
	one(t, n, "h1")
}

func TestListFilter(t *testing.T) {
	h := server(t, furnished())
	for query, want := range map[string]int{"?q=CHURN": 1, "?q=ci-agent": 1, "?status=running": 2, "?mine=1": 2, "?status=running&mine=1": 1, "?status=nonsense": 5, "?q=" + sbFailed: 1} {
		n := tree(t, ask(h, "GET", page+query, nil))
		require.Len(t, all(n, "tbody tr[data-id]"), want, query)
	}
	n := tree(t, ask(h, "GET", page+"?q=zzz", nil))
	require.Contains(t, text(one(t, n, ".empty")), "Nothing matches")
	require.Equal(t, "zzz", attr(one(t, n, "input[name=q]"), "value"))
	require.Equal(t, page+"/events?q=zzz", attr(one(t, n, "[sse-connect]"), "sse-connect"), "the stream has the page's filter")
}

func TestListForWhoMayOnlyLook(t *testing.T) {
	f := furnished()
	f.rights["tom"] = auth.Permissions{auth.SandboxesRead}
	h := server(t, f)
	n := tree(t, ask(h, "GET", page, nil, "who", "tom"))
	require.Empty(t, all(n, `a[href$="/new"]`))
	require.Empty(t, all(n, "input[name=id]"))
	f.sandboxes = nil
	n = tree(t, ask(h, "GET", page, nil, "who", "tom"))
	require.Contains(t, text(one(t, n, ".empty")), "sandboxes:run")
}

func TestKillAsksAndNamesWhatGoes(t *testing.T) {
	f := furnished()
	h := server(t, f)
	n := tree(t, ask(h, "GET", page+"/kill?id="+sbRunning+"&id="+sbFailed+"&id=unknown", nil))
	require.Contains(t, text(one(t, n, "h1")), "Kill 2 sandboxes?")
	require.Contains(t, text(one(t, n, "form ul")), "churn-notebook")
	form := one(t, n, "main form")
	require.Equal(t, "post", attr(form, "method"))
	require.Len(t, all(form, "input[name=id]"), 2)
	require.Empty(t, f.called())
	w := ask(h, "POST", page+"/kill", url.Values{"id": {sbRunning, sbFailed}})
	require.Equal(t, 303, w.Code)
	require.Equal(t, []string{"kill " + sbRunning, "kill " + sbFailed}, f.called())
}

func TestKillOnItsPageIsTyped(t *testing.T) {
	f := furnished()
	h := server(t, f)
	at := page + "/" + sbRunning + "/kill"
	n := tree(t, ask(h, "GET", at, nil))
	require.Equal(t, "churn-notebook", attr(one(t, n, "input[name=typed]"), "data-typed"))
	w := ask(h, "POST", at, url.Values{"typed": {"churn"}})
	require.Equal(t, 422, w.Code)
	require.Empty(t, f.called())
	w = ask(h, "POST", at, url.Values{"typed": {"churn-notebook"}}, "HX-Request", "true")
	require.Equal(t, 200, w.Code)
	require.Equal(t, page+"?done=killed", w.Header().Get("HX-Redirect"))
	require.Equal(t, []string{"kill " + sbRunning}, f.called())
}

func TestCreate(t *testing.T) {
	f := furnished()
	h := server(t, f)
	n := tree(t, ask(h, "GET", page+"/new?label=from+a+link", nil))
	require.Equal(t, "from a link", attr(one(t, n, "input[name=label]"), "value"))
	part := ask(h, "GET", page+"/new", nil, "HX-Request", "true")
	require.NotContains(t, part.Body.String(), "<nav", "a dialog takes the form alone")
	w := ask(h, "POST", page+"/new", url.Values{"label": {"x"}, "image": {"base"}, "env": {"A=b=c\r\nB=\r\n"}})
	require.Equal(t, 303, w.Code)
	require.Equal(t, page+"/"+sbRunning, w.Header().Get("Location"))
	require.Equal(t, []string{"create x base b=c"}, f.called())
}

func TestCreateShowsWhatIsWrongWhereItIs(t *testing.T) {
	h := server(t, furnished())
	for _, form := range []url.Values{{"cpu": {"many"}, "label": {"keep"}}, {"cpu": {"99"}, "label": {"keep"}}} {
		w := ask(h, "POST", page+"/new", form)
		require.Equal(t, 422, w.Code)
		n := tree(t, w)
		require.NotEmpty(t, text(one(t, n, "#cpu-wrong")))
		require.Equal(t, "true", attr(one(t, n, "input[name=cpu]"), "aria-invalid"))
		require.Equal(t, "keep", attr(one(t, n, "input[name=label]"), "value"), "nothing typed is lost")
		one(t, n, "details.more[open]")
	}
}

func TestImageThatIsBuilt(t *testing.T) {
	h := server(t, furnished(), func(o *handlers.Options) { o.Images = fakeImages{state: "building", percent: 40} })
	n := tree(t, ask(h, "GET", page+"/new", nil))
	require.Equal(t, "40", attr(one(t, n, "progress"), "value"))
	h = server(t, furnished(), func(o *handlers.Options) { o.Images = fakeImages{state: "failed"} })
	n = tree(t, ask(h, "GET", page+"/new", nil))
	require.Contains(t, text(one(t, n, ".notice.bad")), "last line of the log")
}

func TestSandboxPage(t *testing.T) {
	f := furnished()
	h := server(t, f)
	n := tree(t, ask(h, "GET", page+"/"+sbRunning+"?path=/work&file=/work/notes.md", nil))
	require.Equal(t, "churn-notebook", text(one(t, n, "#head h1")))
	require.Len(t, all(n, ".entry"), 9)
	require.Contains(t, text(one(t, n, ".preview pre")), "epochs: 3")
	require.Contains(t, text(one(t, n, ".side pre.code")), `client.sandboxes.get("`+sbRunning+`")`)
	require.Contains(t, text(one(t, n, ".side pre.code")), "http://"+host)
	require.Len(t, all(n, "#strip li"), 5)
	one(t, n, ".entry.on")
	one(t, n, `a[href="`+page+"/"+sbRunning+`/kill"]`)
	require.Equal(t, 404, ask(h, "GET", page+"/sbzzzzzzzzzzzzzzzzzzzz", nil).Code)
	require.Equal(t, 404, ask(h, "GET", page+"/nonsense", nil).Code)
}

func TestFailedSandboxSaysWhy(t *testing.T) {
	h := server(t, furnished())
	n := tree(t, ask(h, "GET", page+"/"+sbFailed, nil))
	require.Contains(t, text(one(t, n, "#story .notice.bad")), "Out of memory")
	require.Contains(t, text(one(t, n, "#no-terminal")), "not running")
}

func TestDeathsInWords(t *testing.T) {
	f := furnished()
	h := server(t, f)
	for _, reason := range []string{
		sandbox.ReasonOutOfMemory, sandbox.ReasonTooManyProcesses, sandbox.ReasonDiskFull, sandbox.ReasonCrash, sandbox.ReasonKilled,
		sandbox.ReasonStartFailed, sandbox.ReasonHostRestarted, "some_new_reason",
	} {
		f.sandboxes[4].Reason = reason
		n := tree(t, ask(h, "GET", page+"/"+sbFailed, nil))
		require.NotContains(t, text(one(t, n, "#story .notice.bad")), "_", reason)
	}
}

func TestActivity(t *testing.T) {
	f := furnished()
	f.events = append(f.events, audit.Event{Seq: 2, Action: "key.revoke", Outcome: "started", At: now.Add(-48 * time.Hour)})
	h := server(t, f)
	n := tree(t, ask(h, "GET", "/w/research/activity?q=x&action=key.&outcome=failed&from=24h&to=2026-11-30T12:00&actor=tom&sandbox="+sbRunning, nil))
	require.Len(t, all(n, "tbody tr"), 6)
	require.Equal(t, "running", text(all(n, "tbody .st")[5]), "what has no outcome yet")
	require.Equal(t, "x", attr(one(t, n, "input[name=q]"), "value"))
	require.Equal(t, "key.", attr(one(t, n, "select[name=action] option[selected]"), "value"))
	require.Equal(t, "failed", attr(one(t, n, "select[name=outcome] option[selected]"), "value"))
	require.Equal(t, "tom", attr(one(t, n, "input[type=hidden][name=actor]"), "value"))
	require.Equal(t, audit.Filter{
		WorkspaceID: "w1", From: now.Add(-24 * time.Hour), To: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Actor: "tom", Action: "key.", Outcome: "failed",
		SandboxID: sbRunning, Q: "x", Limit: 50,
	}, f.asked)
	for _, word := range []string{"format=csv", "format=ndjson", "q=x", "actor=tom"} {
		require.Contains(t, attr(all(n, "details.export a")[0], "href")+attr(all(n, "details.export a")[1], "href"), word, "exports have the page's filter")
	}
	require.Equal(t, "/w/research/activity/9", attr(one(t, n, "#event-9 a.when"), "href"))
	f.rights["tom"] = auth.Permissions{auth.SandboxesRead}
	w := ask(h, "GET", "/w/research/activity", nil, "who", "tom")
	require.Equal(t, 403, w.Code)
	require.Equal(t, 200, ask(h, "GET", "/w/research/activity?sandbox="+sbRunning, nil, "who", "tom").Code)
	require.Equal(t, 403, ask(h, "GET", "/w/research/activity/record", nil, "who", "tom").Code)
}

func TestPeople(t *testing.T) {
	f := furnished()
	h := server(t, f)
	n := tree(t, ask(h, "GET", "/w/research/people", nil))
	require.Len(t, all(n, `form[action$="/role"]`), 2)
	require.Len(t, all(n, `a[href$="/revoke"]`), 1, "a revoked key can't be revoked again")
	require.Len(t, all(n, ".more table tbody tr"), len(auth.AllPermissions))
	w := ask(h, "POST", "/w/research/people/invitations", url.Values{"email": {"new@example.org"}, "role": {"viewer"}})
	n = tree(t, w)
	require.Equal(t, "http://"+host+"/invite?token=tok", text(one(t, n, "[data-secret]")))
	w = ask(h, "POST", "/w/research/keys", url.Values{"name": {"ci"}, "permission": {"sandboxes:run", "made:up"}, "expires": {"30"}})
	n = tree(t, w)
	require.Equal(t, "sg_aaaaaaaa_secret", text(one(t, n, "[data-secret]")))
	require.Contains(t, text(one(t, n, "[data-shown-once] pre")), `Client("sg_aaaaaaaa_secret", base_url="http://`+host)
	require.Equal(t, 303, ask(h, "POST", "/w/research/people/tom/run", url.Values{"run": {"1"}}).Code)
	require.Equal(t, 303, ask(h, "POST", "/w/research/people/tom/role", url.Values{"role": {"operator"}}).Code)
	require.Equal(t, 303, ask(h, "POST", "/w/research/people/tom/remove", url.Values{}).Code)
	require.Equal(t, 303, ask(h, "POST", "/w/research/keys/k1/revoke", url.Values{}).Code)
	require.Equal(t, []string{"invite new@example.org", "key ci sandboxes:run", "grant tom", "role tom operator", "remove tom", "revoke k1"}, f.called())
	require.Contains(t, text(tree(t, ask(h, "GET", "/w/research/people/tom/run", nil))), "run code here?")
	require.Equal(t, 404, ask(h, "GET", "/w/research/people/nobody/run", nil).Code)
}

func TestDoor(t *testing.T) {
	f := furnished()
	h := server(t, f)
	w := ask(h, "GET", page+"?q=1", nil, "who", "")
	require.Equal(t, "/sign-in?next="+url.QueryEscape(page+"?q=1"), w.Header().Get("Location"))
	w = ask(h, "POST", "/sign-in", url.Values{"email": {"a@b.c"}, "password": {"wrong"}, "next": {page}}, "who", "")
	require.Equal(t, 422, w.Code)
	n := tree(t, w)
	require.Equal(t, page, attr(one(t, n, "input[name=next]"), "value"))
	require.Equal(t, "a@b.c", attr(one(t, n, "input[name=email]"), "value"))
	require.Empty(t, attr(one(t, n, "input[name=password]"), "value"))
	w = ask(h, "POST", "/sign-in", url.Values{"email": {"a@b.c"}, "password": {"correct horse"}, "next": {"//evil.example"}}, "who", "")
	require.Equal(t, "/", w.Header().Get("Location"))
	require.Equal(t, 303, ask(h, "POST", "/sign-out", url.Values{}).Code)
	require.Contains(t, f.called(), "signed out")
	require.Equal(t, 401, ask(h, "GET", "/session", nil, "who", "", "Accept", "application/json").Code)
	require.Equal(t, 404, ask(h, "GET", "/invite?token=bad", nil, "who", "").Code)
	n = tree(t, ask(h, "GET", "/invite?token=good", nil, "who", ""))
	require.Equal(t, "Join Research", text(one(t, n, "h1")))
	require.Equal(t, 422, ask(h, "POST", "/invite", url.Values{"token": {"good"}, "password": {"short"}}, "who", "").Code)
	require.Equal(t, 303, ask(h, "POST", "/invite", url.Values{"token": {"good"}, "password": {"long enough"}}, "who", "").Code)
}

func TestSetup(t *testing.T) {
	f := newFake()
	h := server(t, f)
	require.Equal(t, 403, ask(h, "GET", "/setup?token=x", nil, "who", "").Code, "used")
	f.needSetup = true
	n := tree(t, ask(h, "GET", "/setup?token=x", nil, "who", ""))
	require.Equal(t, "x", attr(one(t, n, "input[name=token]"), "value"))
	require.Equal(t, strconv.Itoa(auth.PasswordMinRunes), attr(one(t, n, "input[name=password]"), "minlength"), "the browser asks for what the service does")
	for _, a := range one(t, n, "input[name=run]").Attr {
		require.NotEqual(t, "checked", a.Key, "running code is never granted by default")
	}
	form := url.Values{"token": {"x"}, "email": {"ana@example.org"}, "password": {"correct horse"}, "workspace": {"R"}, "run": {"1"}}
	w := ask(h, "POST", "/setup", form, "who", "")
	require.Equal(t, page+"/new", w.Header().Get("Location"))
	f.fail = fault.Field("password", "is too short")
	w = ask(h, "POST", "/setup", form, "who", "")
	require.Equal(t, 422, w.Code)
	require.Contains(t, text(one(t, tree(t, w), "#password-wrong")), "too short")
}

func TestLocalPath(t *testing.T) {
	for next, want := range map[string]string{
		"/w/a?b=c": "/w/a?b=c", "": "/", "//evil.example": "/", "https://evil.example": "/", "/\\evil.example": "/", "javascript:alert(1)": "/",
		"/a\r\nSet-Cookie: x": "/", "\\\\evil": "/", "evil.example": "/", "/%2f/evil": "/%2f/evil",
	} {
		require.Equal(t, want, handlers.LocalPath(next), next)
	}
}

func TestThemeAndAccount(t *testing.T) {
	h := server(t, furnished())
	require.Equal(t, "system", attr(one(t, tree(t, ask(h, "GET", "/account", nil)), "html"), "data-theme"))
	w := ask(h, "POST", "/account/theme", url.Values{"theme": {"dark"}})
	require.Contains(t, w.Header().Get("Set-Cookie"), "sandgate_theme=dark")
	n := tree(t, ask(h, "GET", "/account", nil, "Cookie", "who=ana; sandgate_theme=dark"))
	require.Equal(t, "dark", attr(one(t, n, "html"), "data-theme"))
	require.Equal(t, 303, ask(h, "POST", "/account/workspaces", url.Values{"name": {"Lab"}}).Code)
}

func TestShownNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1024: "1.0 kB", 2_200: "2.2 kB", 212_000_000: "212 MB", -1: "–"} {
		require.Equal(t, want, handlers.Size(n))
	}
	for d, want := range map[time.Duration]string{0: "just now", 90 * time.Second: "1 min ago", 3 * time.Hour: "3 h ago", 50 * time.Hour: "2 d ago", -3 * time.Hour: "in 3 h"} {
		require.Equal(t, want, handlers.Ago(d))
	}
}

// hostile is what a name may be made of by somebody who wants a page to do something.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>' hx-get=/sign-out {{7*7}} javascript:alert(1)` + "\u202egnp.exe\x1b[31m\u0000"

func TestHostileTextIsTextOnEveryPage(t *testing.T) {
	f := furnished()
	for i := range f.sandboxes {
		b := &f.sandboxes[i]
		b.Label, b.OwnerName, b.Image, b.Reason, b.Cwd, b.User = hostile, hostile, hostile, hostile, "/"+hostile, hostile
	}
	for i := range f.list.Entries {
		f.list.Entries[i].NameB64, f.list.Entries[i].TargetB64 = []byte(hostile+"\xff"), []byte(hostile)
	}
	for i := range f.events {
		e := &f.events[i]
		e.Actor, e.Action, e.Target, e.Detail, e.Outcome, e.Address, e.RequestID = hostile, hostile, hostile, hostile, hostile, hostile, hostile
	}
	for i := range f.members {
		f.members[i].Email, f.members[i].Role = hostile, auth.Role(hostile)
	}
	for i := range f.keys {
		f.keys[i].Name, f.keys[i].OwnerEmail, f.keys[i].Prefix = hostile, hostile, hostile
	}
	f.invited[0].Email = hostile
	f.workspace.Name = hostile
	f.ptys = []workspace.Terminal{{Driver: hostile}}
	f.preview.Kind, f.preview.Rows = "csv", [][]string{{hostile}, {hostile}}
	h := server(t, f, func(o *handlers.Options) { o.Images = fakeImages{state: "failed"} })
	q := "?path=/" + url.QueryEscape(hostile[:40]) + "&file=/" + url.QueryEscape(hostile[:40])
	for _, target := range []string{
		page, page + "?q=" + url.QueryEscape(hostile), page + "/new?label=" + url.QueryEscape(hostile) + "&env=" + url.QueryEscape(hostile),
		page + "/kill?id=" + sbRunning, page + "/" + sbRunning + q, page + "/" + sbFailed, page + "/" + sbRunning + "/kill",
		page + "/" + sbRunning + "/files/rename" + q, page + "/" + sbRunning + "/files/new-folder" + q,
		"/w/research/activity?q=" + url.QueryEscape(hostile) + "&action=" + url.QueryEscape(hostile) + "&actor=" + url.QueryEscape(hostile),
		"/w/research/people", "/w/research/people/tom/run", "/w/research/people/tom/remove", "/w/research/keys/k1/revoke",
		"/account", "/invite?token=good", "/sign-in?next=" + url.QueryEscape("/"+hostile), "/setup?token=" + url.QueryEscape(hostile), "/w/research/nothing" + url.PathEscape(hostile),
	} {
		w := ask(h, "GET", target, nil)
		n := tree(t, w)
		scripts := all(n, "script")
		for _, s := range scripts {
			require.Equal(t, "/static/app", attr(s, "src")[:11], "%s: a script of ours", target)
			require.Empty(t, text(s), target)
		}
		require.Empty(t, all(n, "img[onerror], iframe, object, embed, base, style"), target)
		walk(n, func(e *html.Node) {
			for _, a := range e.Attr {
				require.False(t, len(a.Key) > 2 && a.Key[:2] == "on", "%s: %s on %s", target, a.Key, e.Data)
				if a.Key == "href" || a.Key == "action" || a.Key == "src" || a.Key == "hx-get" || a.Key == "hx-post" {
					require.Regexp(t, `^(/[^/\\]|/$|#)`, a.Val, "%s: %s on %s stays here", target, a.Key, e.Data)
					require.False(t, a.Key == "hx-get" && a.Val == "/sign-out", target)
				}
			}
			if e.Type == html.TextNode && e.Parent.Data != "textarea" { // there it is what the person is about to send
				require.NotContains(t, e.Data, "\u202e", "%s: text that runs backwards is made visible", target)
				require.NotContains(t, e.Data, "\x1b", target)
			}
		})
	}
}

func walk(n *html.Node, see func(*html.Node)) {
	see(n)
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		walk(c, see)
	}
}
