package handlers

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/workspace"
	"sandgate/sandbox/effect"
	"sandgate/views"
	"sandgate/views/ui"
)

// Bounds of what a request's page shows of contents; all of them can be downloaded.
const (
	maxContentShown = 128 << 10 // bytes of a text
	maxHexShown     = 512       // bytes of what is no text
)

// titleOf says in a few words what is asked for.
func titleOf(one workspace.Approval) string {
	r := one.Request
	name := func(key string) string { return display(short(baseOf(r.Params[key]), 60)) }
	switch r.Action {
	case "command.run":
		return "Run a command"
	case "command.start":
		return "Start a command in the background"
	case "command.stdin":
		return "Send input to a command"
	case "file.write":
		return "Write " + name("path")
	case "file.delete":
		return "Delete " + name("path")
	case "file.mkdir":
		return "Make the folder " + name("path")
	case "file.move":
		return "Move " + name("source")
	case "file.copy":
		return "Copy " + name("source")
	case "file.chmod":
		return "Change who may use " + name("path")
	case "file.unpack":
		return "Unpack an archive"
	case "terminal.open":
		return "Type in a terminal"
	case "sandbox.update":
		return "Change the network"
	}
	return display(r.Action)
}

func baseOf(p string) string {
	if i := strings.LastIndexByte(strings.TrimRight(p, "/"), '/'); i >= 0 && len(p) > 1 {
		return p[i+1:]
	}
	return p
}

// request is everything that the page of one shows.
func (v *visit) request(one workspace.Approval) (*views.ApprovalRequest, error) {
	r := one.Request
	at := v.approvalsBase() + "/" + one.ID
	out := &views.ApprovalRequest{
		ID: one.ID, Title: v.asker(r.Requester) + " asks: " + titleOf(one), State: approvalState(one.Status), Digest: one.Digest,
		Reason: escapeHidden(r.Reason), Why: display(r.Why), Facts: v.requestFacts(one),
	}
	if one.Status == approval.Pending {
		out.Expires = v.s.when(one.ExpiresAt)
	}
	switch {
	case one.Kind == approval.Command && r.Params["command"] != "":
		out.Command = commandPieces(r.Params["command"])
		out.Warnings = warningsOf(r.Params["command"])
		for _, k := range slices.Sorted(maps.Keys(r.Env)) {
			out.Env = append(out.Env, views.Fact{Name: display(k), Value: display(r.Env[k])})
		}
		for _, s := range r.Secrets {
			out.Secrets = append(out.Secrets, display(s))
		}
	case one.Kind == approval.Network:
		out.Network = []views.Fact{{Name: "Now", Value: display(r.Params["before"])}, {Name: "Then", Value: display(r.Params["network"])}}
	}
	for _, u := range r.Unbound {
		out.Unbound = append(out.Unbound, display(u))
	}
	for _, p := range r.Before {
		out.Before = append(out.Before, views.PastLine{
			At: v.s.when(p.At), Action: display(p.Action), Target: display(short(p.Target, 200)), Outcome: outcome(p.Outcome),
		})
	}
	contents, err := v.contents(one, at)
	if err != nil {
		return nil, err
	}
	out.Contents = contents
	past, err := v.s.o.Service.ApprovalHistory(v.ctx(), v.actor, one)
	if err != nil {
		return nil, err
	}
	out.History = historyWords(r.Requester.Name, past)
	out.Outcome = v.outcomeFacts(one)
	if one.Effect != nil {
		out.Effect = v.effect(one.Effect)
	}
	if one.Status == approval.Pending {
		return out, v.offer(out, one, at)
	}
	if one.Mine && one.Status == approval.Approved && v.actor.May(auth.SandboxesRun) {
		out.Cancel = at + "/cancel"
	}
	return out, nil
}

// offer adds what can be done about a request that waits.
func (v *visit) offer(out *views.ApprovalRequest, one workspace.Approval, at string) (err error) {
	if one.Mine && v.actor.May(auth.SandboxesRun) {
		out.Cancel = at + "/cancel"
	}
	if one.WhyNot != "" {
		out.Decide.Why = one.WhyNot
		return nil
	}
	out.Decide.Approve, out.Decide.Deny = at+"/approve", at+"/deny"
	if out.Decide.Same, err = v.sameAs(one); err != nil {
		return err
	}
	if one.Tryable {
		out.Try = views.ApprovalTry{Action: at + "/try", Button: "Try it in a copy"}
		switch {
		case one.Trying:
			out.Try.Button = "It is being tried…"
		case one.Effect != nil:
			out.Try.Button = "Try again"
		}
	}
	return nil
}

func (v *visit) asker(r approval.Requester) string {
	name := display(r.Name)
	if r.Kind == auth.KeyUser {
		name = "key " + name
	}
	return name
}

func approvalState(s approval.Status) ui.State {
	tones := map[approval.Status]ui.Tone{
		approval.Pending: ui.Warn, approval.Approved: ui.Ok, approval.Used: ui.Ok, approval.Denied: ui.Bad, approval.Void: ui.Bad,
	}
	words := map[approval.Status]string{approval.Pending: "waiting", approval.Used: "approved and used", approval.Cancelled: "taken back"}
	text, ok := words[s]
	if !ok {
		text = string(s)
	}
	return ui.State{Text: text, Tone: tones[s], Busy: s == approval.Pending}
}

// requestFacts are who asks, where, and how it would be done.
func (v *visit) requestFacts(one workspace.Approval) (out []views.Fact) {
	r := one.Request
	add := func(name, value string) {
		if value != "" {
			out = append(out, views.Fact{Name: name, Value: display(value)})
		}
	}
	if r.Requester.Kind == auth.KeyUser {
		owner := r.Requester.Owner
		if owner == "" {
			owner = "nobody: a service account"
		}
		add("Key of", owner)
	}
	out = append(out, views.Fact{Name: "Sandbox", Value: nameOr(v.sandboxNames(), one.SandboxID), URL: v.base() + "/sandboxes/" + one.SandboxID})
	add("Image", r.Image)
	add("From", r.Requester.From)
	p := r.Params
	if one.Kind == approval.Command {
		add("In", p["cwd"])
		add("As", p["user"])
		if ms, err := strconv.ParseInt(p["timeout_ms"], 10, 64); err == nil && ms > 0 {
			add("Ends after", took(float64(ms)/1000))
		}
		if p["background"] == "true" {
			add("How", "in the background")
		}
	}
	if one.Kind == approval.Write {
		path := r.State["path"]
		if path == "" {
			path = p["path"]
		}
		add("Path", path)
		if p["path"] != path {
			add("As it was asked for", p["path"])
		}
		add("From path", p["source"])
		add("To", p["destination"])
		if p["mode"] != "0000" { // it stays as it is
			add("Mode", p["mode"])
		}
		if p["recursive"] == "true" {
			add("How", "with everything in it")
		}
	}
	return out
}

// commandPieces colours a command: programs, texts, operators, what deserves a second look; and spells out what cannot be seen.
func commandPieces(command string) (out []views.Piece) {
	at := 0
	for _, m := range approval.Marks(command) {
		out = append(out, plainPieces(command[at:m.From], "", "")...)
		out = append(out, plainPieces(command[m.From:m.To], m.Class, m.Why)...)
		at = m.To
	}
	return append(out, plainPieces(command[at:], "", "")...)
}

// plainPieces parts a text into what one sees, what one does not, and letters that may look like others.
func plainPieces(s, class, title string) (out []views.Piece) {
	var run strings.Builder
	flush := func() {
		if run.Len() > 0 {
			out = append(out, views.Piece{Text: run.String(), Class: class, Title: title})
			run.Reset()
		}
	}
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			flush()
			out = append(out, views.Piece{Text: fmt.Sprintf(`\x%02X`, s[i]), Class: "hid", Title: "a byte that is no text"})
		case hidden(r) || r == '\r':
			flush()
			out = append(out, views.Piece{Text: fmt.Sprintf(`\u{%X}`, r), Class: "hid", Title: "a character that cannot be seen"})
		case r > unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsPunct(r) || unicode.IsSymbol(r) || unicode.IsSpace(r) || unicode.IsMark(r)):
			flush()
			out = append(out, views.Piece{Text: string(r), Class: "odd", Title: fmt.Sprintf("U+%04X: it may look like another", r)})
		default:
			run.WriteRune(r)
		}
	}
	flush()
	return out
}

// warningsOf says what the eye may miss.
func warningsOf(command string) (out []ui.Message) {
	unseen, odd := 0, 0
	for _, p := range plainPieces(command, "", "") {
		switch p.Class {
		case "hid":
			unseen++
		case "odd":
			odd++
		}
	}
	if unseen > 0 {
		out = append(out, ui.Message{Tone: ui.Bad, Text: fmt.Sprintf("It holds %d characters that cannot be seen.", unseen), More: "They are spelled out below."})
	}
	if odd > 0 {
		out = append(out, ui.Message{Tone: ui.Warn, Text: fmt.Sprintf("It holds %d characters beyond ASCII: some look like others.", odd), More: "They are underlined below."})
	}
	if len(approval.Marks(command)) == 0 && strings.TrimSpace(command) != "" {
		out = append(out, ui.Message{Tone: ui.Warn, Text: "No shell takes it as it stands.", More: "It could not be taken apart, so nothing in it is coloured."})
	}
	if n := strings.Count(command, "\n"); n > 30 {
		out = append(out, ui.Message{Tone: ui.Warn, Text: fmt.Sprintf("It has %d lines. Read to the end.", n+1)})
	}
	return out
}

func historyWords(name string, p workspace.ApprovalPast) (out []string) {
	if p.Asked == 1 {
		out = append(out, fmt.Sprintf("The second request of %s; the first was %s.", display(name), map[bool]string{true: "approved", false: "not approved"}[p.Approved == 1]))
	} else if p.Asked > 1 {
		out = append(out, fmt.Sprintf("Of the last %d requests of %s %d were approved and %d denied.", p.Asked, display(name), p.Approved, p.Denied))
	} else {
		out = append(out, fmt.Sprintf("The first request of %s that is kept here.", display(name)))
	}
	if p.Same > 0 {
		out = append(out, fmt.Sprintf("The very same was approved %d of %d times before.", p.SameApproved, p.Same))
	}
	return out
}

// outcomeFacts are who decided and what became of it.
func (v *visit) outcomeFacts(one workspace.Approval) (out []views.Fact) {
	add := func(name, value string) {
		if value != "" {
			out = append(out, views.Fact{Name: name, Value: value})
		}
	}
	if d := one.Decision; !d.At.IsZero() {
		word := "Approved by"
		if one.Status == approval.Denied {
			word = "Denied by"
		}
		by := display(d.By)
		if d.KeyID != "" {
			by += " through a key"
		}
		add(word, by)
		add("At", v.s.when(d.At).Exact)
		add("Reason", escapeHidden(d.Reason))
	}
	if one.Status == approval.Approved {
		add("To be used until", v.s.when(one.UseBy).Exact)
	}
	if !one.UsedAt.IsZero() {
		add("Used at", v.s.when(one.UsedAt).Exact)
		words := map[string]string{"ok": "it ran", "failed": "it failed", "unknown": "not known: it was about to run when the server ended, or runs now", "refused": "it was refused"}
		if w, ok := words[one.Outcome]; ok {
			add("What became of it", w)
		} else {
			add("What became of it", display(one.Outcome))
		}
	}
	if one.Status != approval.Pending && one.Why != "" {
		add("Why", display(one.Why))
	}
	if !one.Grant.Until.IsZero() {
		add("May type until", v.s.when(one.Grant.Until).Exact)
	}
	if len(out) > 0 {
		out = append(out, views.Fact{Name: "On record", Value: "its story", URL: v.base() + "/activity?q=" + one.ID})
	}
	return out
}

// contents shows what goes with a request.
func (v *visit) contents(one workspace.Approval, at string) (out []views.ApprovalContent, err error) {
	var old []byte
	hasOld := one.Request.Blob(approval.BlobOld) != nil
	if hasOld {
		if old, err = v.s.o.Service.ApprovalContent(v.ctx(), v.actor, one.ID, approval.BlobOld); err != nil {
			old, hasOld = nil, false // forgotten, of one that is over
		}
	}
	for _, b := range one.Request.Blobs {
		if b.Name == approval.BlobOld {
			continue
		}
		c := views.ApprovalContent{
			Name: contentName(b), Path: display(b.Path), Bound: b.Bound, Compared: b.Compared(), Digest: b.SHA256, Size: size(b.Size), Get: at + "/contents/" + b.Name,
		}
		data, err := v.s.o.Service.ApprovalContent(v.ctx(), v.actor, one.ID, b.Name)
		if err != nil {
			c.Words, c.Get = "The content is kept no more; its digest is.", ""
			out = append(out, c)
			continue
		}
		var before []byte
		if b.Name == approval.BlobContent && hasOld {
			before = old
		}
		show(&c, before, data, b.Name == approval.BlobContent && hasOld, at)
		out = append(out, c)
	}
	return out, nil
}

func contentName(b approval.Blob) string {
	switch {
	case b.Name == approval.BlobStdin:
		return "Its standard input"
	case b.Name == approval.BlobContent:
		return "What would be written"
	case b.Compared():
		return "The script that it runs"
	}
	return display(b.Name)
}

// show fills in a content: as lines, as an image, or as bytes.
func show(c *views.ApprovalContent, before, after []byte, replaces bool, at string) {
	switch {
	case len(after) == 0 && len(before) == 0:
		c.Words = "Empty."
	case effect.IsText(before) && effect.IsText(after):
		if len(before)+len(after) > 2*maxContentShown {
			after, c.Cut = textCut(after), true
			before = textCut(before)
		}
		if !replaces {
			c.Lines = wholeLines(string(after))
			return
		}
		diff := effect.Unified(string(before), string(after))
		if diff == "" {
			c.Words = "The content stays the same."
		}
		c.Lines = diffLines(diff)
	case rasterTypes[http.DetectContentType(after)]:
		c.Images[1] = at + "/contents/" + approval.BlobContent + "?image=1"
		if replaces && rasterTypes[http.DetectContentType(before)] {
			c.Images[0] = at + "/contents/" + approval.BlobOld + "?image=1"
		}
	default:
		c.Words = "It is no text. The first bytes:"
		c.Hex[1] = hex.Dump(after[:min(len(after), maxHexShown)])
		if replaces {
			c.Hex[0] = hex.Dump(before[:min(len(before), maxHexShown)])
		}
	}
}

func textCut(p []byte) []byte {
	if len(p) <= maxContentShown {
		return p
	}
	return bytes.ToValidUTF8(p[:maxContentShown], nil)
}
