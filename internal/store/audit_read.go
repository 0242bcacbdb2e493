package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode"

	"sandgate/internal/audit"
	"sandgate/internal/fault"
)

// eventColumns put an intent (b) and its outcome (o) together: who, what and when it began from the one, how it ended from
// the other. What was noted by itself has no o.
const eventColumns = `b.seq, b.at, b.workspace_id, b.actor_kind, b.actor_id, b.actor, b.address, b.sandbox_id, b.action, b.target,
	ifnull(o.outcome, b.outcome), ifnull(o.duration_us, b.duration_us), b.digest, ifnull(nullif(o.approval_id, ''), b.approval_id), b.request_id,
	ifnull(o.detail, b.detail), b.intent_seq, b.format, b.owner, ifnull(o.old_digest, b.old_digest), ifnull(o.new_digest, b.new_digest),
	ifnull(o.output_digest, b.output_digest), ifnull(o.seq, 0), ifnull(o.at, 0)`

// outcomeJoin takes the last outcome, should an intent ever have two.
const outcomeJoin = ` FROM audit_events b LEFT JOIN audit_events o ON b.outcome = 'started' AND o.seq =
	(SELECT max(x.seq) FROM audit_events x WHERE x.intent_seq = b.seq AND x.intent_seq <> 0)`

func scanWhole(scan func(...any) error) (audit.Event, error) {
	var end int64
	ended := new(sql.NullInt64)
	r, err := scanRow(scan, &end, ended)
	e := r.Event
	switch {
	case err != nil:
	case end != 0:
		e.EndSeq, e.Ended = end, fromMicros(ended.Int64)
	case e.Outcome != audit.Started:
		e.EndSeq, e.Ended = e.Seq, e.At
	}
	return e, err
}

// conditions collects what a query asks for.
type conditions struct {
	text string
	args []any
}

func (c *conditions) and(cond string, values ...any) {
	c.text += " AND " + cond
	c.args = append(c.args, values...)
}

// AuditEvents gives a page of events. A workspace's page also has what its members did to their sessions, which belong to
// no workspace.
func (s *Store) AuditEvents(ctx context.Context, f audit.Filter) ([]audit.Event, error) {
	if f.Q == "" {
		return s.auditPage(ctx, f, conditions{})
	}
	match := matchWords(f.Q)
	if match == "" {
		return nil, nil // nothing in it that could be looked for
	}
	for window := searchWindow; ; window *= 8 {
		from := int64(0)
		if !f.Oldest {
			var err error
			if from, err = s.searchFrom(ctx, match, f.BeforeSeq, window); err != nil {
				return nil, err
			}
		}
		// A row that matches is an event's own or that of its outcome, which is younger: those from a number on have all the events
		// from that number on.
		var c conditions
		c.and(`b.seq >= ? AND b.seq IN (SELECT CASE r.intent_seq WHEN 0 THEN r.seq ELSE r.intent_seq END
			FROM audit_search JOIN audit_events r ON r.seq = audit_search.rowid WHERE audit_search MATCH ? AND audit_search.rowid >= ?)`, from, match, from)
		list, err := s.auditPage(ctx, f, c)
		if err != nil || from == 0 || len(list) == f.Limit {
			return list, err
		}
	}
}

// searchWindow is how many rows that match are looked at first: a word that is everywhere need not be read everywhere.
const searchWindow = 400

// searchFrom gives the number of the row that is so many matches below another; 0 where there are not so many.
func (s *Store) searchFrom(ctx context.Context, match string, below int64, window int) (from int64, err error) {
	if below == 0 {
		below = math.MaxInt64
	}
	err = s.ro.QueryRowContext(ctx, `SELECT rowid FROM audit_search WHERE audit_search MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT 1 OFFSET ?`,
		match, below, window).Scan(&from)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("search the record: %w", err)
	}
	return from, nil
}

// auditPage is a page of the events that c and everything of f but its words choose.
func (s *Store) auditPage(ctx context.Context, f audit.Filter, c conditions) ([]audit.Event, error) {
	narrow(f, &c)
	order := "DESC"
	if f.Oldest {
		order = "ASC"
	}
	page := func(whose string, values ...any) (string, []any) {
		return `SELECT * FROM (SELECT ` + eventColumns + outcomeJoin + ` WHERE b.intent_seq = 0` + whose + c.text + ` ORDER BY b.seq ` + order + ` LIMIT ?)`,
			append(append(values, c.args...), f.Limit)
	}
	var query string
	var args []any
	switch {
	case f.WorkspaceID == "":
		query, args = page("")
	case f.SandboxID != "": // sessions have no sandbox
		query, args = page(" AND b.workspace_id = ?", f.WorkspaceID)
	default:
		// Two walks along an index each; one condition with OR would read everything of everybody.
		own, ownArgs := page(" AND b.workspace_id = ?", f.WorkspaceID)
		members, memberArgs := page(` AND b.workspace_id = '' AND b.action LIKE 'session.%'
			AND b.actor_id IN (SELECT user_id FROM members WHERE workspace_id = ?)`, f.WorkspaceID)
		query = own + " UNION ALL " + members + " ORDER BY seq " + order + " LIMIT ?"
		args = append(append(ownArgs, memberArgs...), f.Limit)
	}
	rows, err := s.ro.QueryContext(ctx, query, args...)
	return collect(rows, err, "list the record", scanWhole)
}

// narrow adds everything of a filter but whose events, the words, order and length.
func narrow(f audit.Filter, c *conditions) {
	if !f.From.IsZero() {
		c.and(`b.at >= ?`, micros(f.From))
	}
	if !f.To.IsZero() {
		c.and(`b.at < ?`, micros(f.To))
	}
	if f.Actor != "" {
		c.and(`(b.actor = ? OR b.owner = ?)`, f.Actor, f.Actor)
	}
	switch {
	case strings.HasSuffix(f.Action, "."):
		c.and(`b.action LIKE ? ESCAPE '\'`, likeEscape(f.Action)+"%")
	case f.Action != "":
		c.and(`b.action = ?`, f.Action)
	}
	switch f.Outcome {
	case "":
	case audit.Started:
		c.and(`b.seq IN (SELECT seq FROM audit_open)`)
	case audit.OK:
		c.and(`ifnull(o.outcome, b.outcome) = 'ok'`)
	default:
		c.and(`b.seq IN (SELECT CASE r.intent_seq WHEN 0 THEN r.seq ELSE r.intent_seq END
			FROM audit_events r WHERE r.outcome = ? AND r.outcome NOT IN ('ok', 'started'))`, f.Outcome)
	}
	if f.SandboxID != "" {
		c.and(`b.sandbox_id = ?`, f.SandboxID)
	}
	if f.BeforeSeq > 0 {
		c.and(`b.seq < ?`, f.BeforeSeq)
	}
	if f.AfterSeq > 0 {
		c.and(`b.seq > ?`, f.AfterSeq)
	}
}

func likeEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(s)
}

// maxWords bounds a search; what is beyond is left out.
const maxWords = 16

// matchWords writes what somebody looks for in the index's own language, in which everything they wrote is text: each word
// quoted, as the beginning of one. "" where there is no letter or digit in it.
func matchWords(q string) string {
	var out []string
	for _, w := range strings.Fields(q) {
		w = strings.ReplaceAll(strings.ToValidUTF8(w, " "), "\x00", " ")
		if len(out) == maxWords || !strings.ContainsFunc(w, indexed) {
			continue
		}
		out = append(out, `"`+strings.ReplaceAll(w, `"`, `""`)+`"*`)
	}
	return strings.Join(out, " AND ")
}

// indexed reports what the index's tokenizer takes for a part of a word.
func indexed(r rune) bool { return unicode.In(r, unicode.L, unicode.N, unicode.Co) }

// AuditEvent gives an event by the number of either of its rows.
func (s *Store) AuditEvent(ctx context.Context, seq int64) (audit.Event, error) {
	e, err := scanWhole(s.ro.QueryRowContext(ctx, `SELECT `+eventColumns+outcomeJoin+` WHERE b.seq =
		(SELECT CASE intent_seq WHEN 0 THEN seq ELSE intent_seq END FROM audit_events WHERE seq = ?)`, seq).Scan)
	return e, one(err, "read an event", "Event")
}

// IndexAudit makes up to limit more rows searchable.
func (s *Store) IndexAudit(ctx context.Context, limit int) (more bool, err error) {
	var done, end int64
	// Looked at first without the write lock: most of the time there is nothing to do.
	if done, end, err = indexMarks(ctx, s.ro); err != nil || done == end {
		return false, err
	}
	err = s.write(ctx, "make events searchable", func(tx *sql.Tx) error {
		if done, end, err = indexMarks(ctx, tx); err != nil {
			return err
		}
		if done > end { // the record was cut: what the index says of the rest is not true any more
			if _, err := tx.ExecContext(ctx, `INSERT INTO audit_search (audit_search) VALUES ('delete-all')`); err != nil {
				return err
			}
			done = 0
		}
		to := min(end, done+int64(limit))
		_, err := tx.ExecContext(ctx, `INSERT INTO audit_search (rowid, actor, owner, address, sandbox_id, action, target, detail, approval_id, request_id)
			SELECT seq, actor, owner, address, sandbox_id, action, target, detail, approval_id, request_id FROM audit_events
			WHERE seq > ? AND seq <= ? ORDER BY seq`, done, to)
		if err != nil {
			return err
		}
		more = to < end
		_, err = tx.ExecContext(ctx, `UPDATE audit_searchable SET seq = ?`, to)
		return err
	})
	return more, err
}

func indexMarks(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
},
) (done, end int64, err error) {
	err = db.QueryRowContext(ctx, `SELECT (SELECT seq FROM audit_searchable), (SELECT ifnull(max(seq), 0) FROM audit_events)`).Scan(&done, &end)
	if err != nil {
		return 0, 0, fmt.Errorf("read how far the index is: %w", err)
	}
	return done, end, nil
}

// AuditOutput gives the copy of an output by the number of its row.
func (s *Store) AuditOutput(ctx context.Context, seq int64) (audit.Copy, error) {
	c, err := scanCopy(s.ro.QueryRowContext(ctx, `SELECT `+copyColumns+` WHERE c.seq = ?`, seq).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fault.New(fault.NotFound, "The copy of this output is not kept any more.")
	}
	if err != nil {
		return c, fmt.Errorf("read the copy of an output: %w", err)
	}
	return c, nil
}
