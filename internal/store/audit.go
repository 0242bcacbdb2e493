package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"sandgate/internal/audit"
)

var _ audit.Store = (*Store)(nil)

const auditColumns = `seq, at, workspace_id, actor_kind, actor_id, actor, address, sandbox_id, action, target, outcome, duration_us,
	digest, approval_id, request_id, detail, intent_seq, format, owner, old_digest, new_digest, output_digest`

// auditMarks are as many as there are columns, with those of both hashes.
const auditMarks = `?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?`

func scanEvent(scan func(...any) error) (audit.Event, error) {
	r, err := scanRow(scan)
	return r.Event, err
}

func scanRow(scan func(...any) error, more ...any) (r audit.Row, err error) {
	var us int64
	err = scan(append([]any{
		&r.Seq,
		timeColumn{&r.At},
		&r.WorkspaceID, &r.ActorKind, &r.ActorID, &r.Actor, &r.Address, &r.SandboxID, &r.Action,
		&r.Target, &r.Outcome, &us, &r.Digest, &r.ApprovalID, &r.RequestID, &r.Detail, &r.IntentSeq,
		&r.Format, &r.Owner, &r.OldDigest, &r.NewDigest, &r.OutputDigest,
	}, more...)...)
	r.Duration = float64(us) / 1e6
	return r, err
}

// auditStatements are prepared once: every change passes here twice, and SQLite's parser would take a third of the time.
type auditStatements struct {
	head, insert, extend *sql.Stmt
}

func prepareAudit(ctx context.Context, db *sql.DB) (a auditStatements, err error) {
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&a.head, `SELECT seq, hash FROM audit_events ORDER BY seq DESC LIMIT 1`},
		{&a.insert, `INSERT INTO audit_events (` + auditColumns + `, prev_hash, hash)
			VALUES (` + auditMarks + `)`},
		{&a.extend, `INSERT INTO audit_events (` + auditColumns + `, prev_hash, hash)
			SELECT ` + auditMarks + `
			WHERE EXISTS (SELECT 1 FROM audit_events WHERE seq = ? AND hash = ?) ON CONFLICT DO NOTHING`},
	} {
		if *p.stmt, err = db.PrepareContext(ctx, p.text); err != nil { // closed with the database
			return a, err
		}
	}
	return a, nil
}

// AppendAudit calls plan with the end of the chain, under the database's write lock, and inserts what plan returns.
func (s *Store) AppendAudit(ctx context.Context, plan func(audit.Head) ([]audit.Row, error)) error {
	return s.write(ctx, "append to the record", func(tx *sql.Tx) error {
		var head audit.Head
		err := tx.StmtContext(ctx, s.audit.head).QueryRowContext(ctx).Scan(&head.Seq, &head.Hash)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		rows, err := plan(head)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := s.insertAudit(ctx, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// ExtendAudit inserts one row right after head in a single statement, which is atomic like a transaction and costs a
// third of one. false: the chain ends elsewhere, nothing was written.
func (s *Store) ExtendAudit(ctx context.Context, head audit.Head, r audit.Row) (bool, error) {
	res, err := s.audit.extend.ExecContext(ctx, append(auditValues(r), head.Seq, head.Hash)...)
	if err != nil {
		return false, fmt.Errorf("append to the record: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// insertAudit inserts a row; triggers keep the list of open intents.
func (s *Store) insertAudit(ctx context.Context, tx *sql.Tx, r audit.Row) error {
	_, err := tx.StmtContext(ctx, s.audit.insert).ExecContext(ctx, auditValues(r)...)
	return err
}

func auditValues(r audit.Row) []any {
	return []any{
		r.Seq, micros(r.At), r.WorkspaceID, r.ActorKind, r.ActorID, r.Actor, r.Address, r.SandboxID, r.Action, r.Target, r.Outcome,
		audit.DurationMicros(r.Duration), r.Digest, r.ApprovalID, r.RequestID, r.Detail, r.IntentSeq,
		r.Format, r.Owner, r.OldDigest, r.NewDigest, r.OutputDigest, r.PrevHash, r.Hash,
	}
}

// AuditRows gives rows of the chain after a seq, oldest first.
func (s *Store) AuditRows(ctx context.Context, after int64, limit int) ([]audit.Row, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+auditColumns+`, prev_hash, hash FROM audit_events WHERE seq > ? ORDER BY seq LIMIT ?`, after, limit)
	return collect(rows, err, "read the record", func(scan func(...any) error) (audit.Row, error) {
		var prev, hash []byte
		r, err := scanRow(scan, &prev, &hash)
		r.PrevHash, r.Hash = prev, hash
		return r, err
	})
}

// AuditHead gives the end of the chain; zero when there is nothing in it.
func (s *Store) AuditHead(ctx context.Context) (h audit.Head, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT seq, hash FROM audit_events ORDER BY seq DESC LIMIT 1`).Scan(&h.Seq, &h.Hash)
	if errors.Is(err, sql.ErrNoRows) {
		return audit.Head{}, nil
	}
	if err != nil {
		return h, fmt.Errorf("read the record's head: %w", err)
	}
	return h, nil
}

// OpenIntents gives intents without an outcome that were written before a moment, oldest first.
func (s *Store) OpenIntents(ctx context.Context, before time.Time) ([]audit.Event, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+auditColumns+` FROM audit_events WHERE seq IN (SELECT seq FROM audit_open) AND at < ?
		ORDER BY seq`, micros(before))
	return collect(rows, err, "list open intents", scanEvent)
}
