package audit

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// exported is an event in an export, in the names of the REST face.
type exported struct {
	Seq          int64   `json:"seq"`
	At           string  `json:"at"`
	Ended        string  `json:"ended_at,omitempty"`
	ActorKind    string  `json:"actor_kind"`
	Actor        string  `json:"actor"`
	Owner        string  `json:"owner,omitempty"`
	Address      string  `json:"address,omitempty"`
	SandboxID    string  `json:"sandbox_id,omitempty"`
	Action       string  `json:"action"`
	Target       string  `json:"target,omitempty"`
	Outcome      string  `json:"outcome"`
	Duration     float64 `json:"duration"`
	Digest       string  `json:"digest,omitempty"`
	OldDigest    string  `json:"old_digest,omitempty"`
	NewDigest    string  `json:"new_digest,omitempty"`
	OutputDigest string  `json:"output_digest,omitempty"`
	ApprovalID   string  `json:"approval_id,omitempty"`
	RequestID    string  `json:"request_id,omitempty"`
	Detail       string  `json:"detail,omitempty"`
}

var csvHead = []string{
	"seq", "at", "ended_at", "actor_kind", "actor", "owner", "address", "sandbox_id", "action", "target", "outcome", "duration", "digest",
	"old_digest", "new_digest", "output_digest", "approval_id", "request_id", "detail",
}

func (x exported) cells() []string {
	return []string{
		strconv.FormatInt(x.Seq, 10), x.At, x.Ended, x.ActorKind, x.Actor, x.Owner, x.Address, x.SandboxID, x.Action, x.Target, x.Outcome,
		strconv.FormatFloat(x.Duration, 'f', -1, 64), x.Digest, x.OldDigest, x.NewDigest, x.OutputDigest, x.ApprovalID, x.RequestID, x.Detail,
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z")
}

func export(e Event) exported {
	return exported{
		Seq: e.Seq, At: stamp(e.At), Ended: stamp(e.Ended), ActorKind: string(e.ActorKind), Actor: e.Actor, Owner: e.Owner, Address: e.Address,
		SandboxID: e.SandboxID, Action: e.Action, Target: e.Target, Outcome: e.Outcome, Duration: e.Duration, Digest: e.Digest,
		OldDigest: e.OldDigest, NewDigest: e.NewDigest, OutputDigest: e.OutputDigest, ApprovalID: e.ApprovalID, RequestID: e.RequestID, Detail: e.Detail,
	}
}

// exportPage is how many events are held in memory at once.
const exportPage = 500

// Formats of Export.
const (
	NDJSON = "ndjson"
	CSV    = "csv"
)

// Export writes what a filter chooses, oldest first, page by page: however much it is, a page of it is in memory. Limit and
// cursors of the filter do not count. It ends with what was recorded when it began.
func (l *Log) Export(ctx context.Context, f Filter, format string, w io.Writer) error {
	put, flush, err := exporter(format, w)
	if err != nil {
		return err
	}
	head, err := l.Head(ctx)
	if err != nil {
		return err
	}
	f.Oldest, f.Limit, f.BeforeSeq, f.AfterSeq = true, exportPage, head.Seq+1, 0
	for {
		page, err := l.List(ctx, f)
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := put(export(e)); err != nil {
				return err
			}
			f.AfterSeq = e.Seq
		}
		if err := flush(); err != nil || len(page) < exportPage {
			return err
		}
	}
}

func exporter(format string, w io.Writer) (put func(exported) error, flush func() error, err error) {
	switch format {
	case NDJSON:
		return func(x exported) error { return writeLine(w, x) }, func() error { return nil }, nil
	case CSV:
		c := csv.NewWriter(w)
		c.UseCRLF = true // RFC 4180
		put = func(x exported) error {
			cells := x.cells()
			for i := range cells {
				cells[i] = Cell(cells[i])
			}
			return c.Write(cells)
		}
		flush = func() error { c.Flush(); return c.Error() }
		return put, flush, c.Write(csvHead)
	}
	return nil, nil, fmt.Errorf("export as %q: there is ndjson and csv", format)
}

// writeLine writes a value as one line of JSON in which everything that a terminal obeys, or an eye does not see, is escaped.
func writeLine(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	line := strings.TrimSuffix(b.String(), "\n")
	if strings.ContainsFunc(line, unseen) {
		line = escapeWith(line, func(r rune) string {
			if r > 0xffff {
				r -= 0x10000
				return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			}
			return fmt.Sprintf(`\u%04x`, r)
		})
	}
	_, err := io.WriteString(w, line+"\n")
	return err
}

// Cell makes a text safe in a cell: what programs for tables would take for a formula starts with an apostrophe, and what
// is not seen is escaped.
func Cell(s string) string {
	s = Visible(s)
	start := strings.TrimLeftFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == '\'' })
	if start == "" {
		return s
	}
	switch r, _ := utf8.DecodeRuneInString(start); r {
	case '=', '+', '-', '@', '|', '%', '＝', '＋', '－', '＠', '−':
		return "'" + s
	}
	return s
}

// Visible shows controls, marks of direction and other invisible characters as escapes, so that a text is one line and
// does nothing to a terminal.
func Visible(s string) string {
	if !strings.ContainsFunc(s, unseen) {
		return s
	}
	return escapeWith(s, func(r rune) string {
		switch r {
		case '\n':
			return `\n`
		case '\r':
			return `\r`
		case '\t':
			return `\t`
		case '\x1b':
			return `\e`
		}
		return fmt.Sprintf(`\u{%x}`, r)
	})
}

func unseen(r rune) bool {
	return unicode.Is(unicode.C, r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Variation_Selector) || r == utf8.RuneError
}

func escapeWith(s string, how func(rune) string) string {
	var b strings.Builder
	for _, r := range s {
		if unseen(r) && r != utf8.RuneError {
			b.WriteString(how(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// link is a row of the chain in an export: with the key of the data directory its hash can be computed again.
type link struct {
	Seq        int64  `json:"seq"`
	At         int64  `json:"at_us"`
	Format     int    `json:"format"`
	Workspace  string `json:"workspace_id"`
	ActorKind  string `json:"actor_kind"`
	ActorID    string `json:"actor_id"`
	Actor      string `json:"actor"`
	Owner      string `json:"owner"`
	Address    string `json:"address"`
	SandboxID  string `json:"sandbox_id"`
	Action     string `json:"action"`
	Target     string `json:"target"`
	Outcome    string `json:"outcome"`
	Duration   int64  `json:"duration_us"`
	Digest     string `json:"digest"`
	Old        string `json:"old_digest"`
	New        string `json:"new_digest"`
	Output     string `json:"output_digest"`
	ApprovalID string `json:"approval_id"`
	RequestID  string `json:"request_id"`
	Detail     string `json:"detail"`
	IntentSeq  int64  `json:"intent_seq"`
	PrevHash   string `json:"prev_hash"`
	Hash       string `json:"hash"`
}

// ExportChain writes every row as it is stored, oldest first, a line of JSON each.
func (l *Log) ExportChain(ctx context.Context, w io.Writer) error {
	for after := int64(0); ; {
		rows, err := l.Rows(ctx, after, exportPage)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, r := range rows {
			after = r.Seq
			err = errors.Join(err, writeLine(w, link{
				Seq: r.Seq, At: r.At.UnixMicro(), Format: r.Format, Workspace: r.WorkspaceID, ActorKind: string(r.ActorKind), ActorID: r.ActorID,
				Actor: r.Actor, Owner: r.Owner, Address: r.Address, SandboxID: r.SandboxID, Action: r.Action, Target: r.Target, Outcome: r.Outcome,
				Duration: DurationMicros(r.Duration), Digest: r.Digest, Old: r.OldDigest, New: r.NewDigest, Output: r.OutputDigest,
				ApprovalID: r.ApprovalID, RequestID: r.RequestID, Detail: r.Detail, IntentSeq: r.IntentSeq,
				PrevHash: hex.EncodeToString(r.PrevHash), Hash: hex.EncodeToString(r.Hash),
			}))
		}
		if err != nil {
			return err
		}
	}
}
