package store

import (
	"context"
	"database/sql"
	"time"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
)

var _ approval.Store = (*Store)(nil)

const approvalColumns = `id, workspace_id, sandbox_id, kind, status, digest, asked, sealed, user_id, key_id, bytes, created_at, expires_at,
	decided_by, decided_user, decided_key, decided_at, decision_reason, use_by, used_at, outcome, why, grant_terminal, grant_until`

func scanApproval(scan func(...any) error) (r approval.Record, err error) {
	d := &r.Decision
	err = scan(
		&r.ID, &r.WorkspaceID, &r.SandboxID, &r.Kind, &r.Status, &r.Digest, &r.Asked, &r.Sealed, &r.UserID, &r.KeyID, &r.Bytes,
		timeColumn{&r.CreatedAt},
		timeColumn{&r.ExpiresAt},
		&d.By, &d.UserID, &d.KeyID,
		timeColumn{&d.At},
		&d.Reason,
		timeColumn{&r.UseBy},
		timeColumn{&r.UsedAt},
		&r.Outcome, &r.Why, &r.Grant.Terminal,
		timeColumn{&r.Grant.Until},
	)
	return r, err
}

// InsertApproval adds a request with its contents, unless too many wait.
func (s *Store) InsertApproval(ctx context.Context, r approval.Record, contents []approval.Content) error {
	return s.write(ctx, "insert approval "+r.ID, func(tx *sql.Tx) error {
		var inSandbox, all, bytes int64
		err := tx.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE sandbox_id = ?), count(*), coalesce(sum(bytes), 0) FROM approvals
			WHERE workspace_id = ? AND (status = 'pending' AND expires_at > ? OR status = 'approved' AND use_by > ?)`,
			r.SandboxID, r.WorkspaceID, micros(r.CreatedAt), micros(r.CreatedAt)).Scan(&inSandbox, &all, &bytes)
		switch {
		case err != nil:
			return err
		case inSandbox >= approval.MaxPendingSandbox:
			return fault.New(fault.QuotaExceeded, "%d requests of this sandbox wait for approval already.", inSandbox)
		case all >= approval.MaxPendingWorkspace:
			return fault.New(fault.QuotaExceeded, "%d requests of this workspace wait for approval already.", all)
		case bytes+r.Bytes > approval.MaxPendingBytes:
			return fault.New(fault.QuotaExceeded, "The contents that wait for approval in this workspace may take %d MiB together.", approval.MaxPendingBytes>>20)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO approvals (id, workspace_id, sandbox_id, kind, status, digest, asked, sealed, user_id, key_id, bytes,
			created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.WorkspaceID, r.SandboxID, r.Kind, r.Status, r.Digest, r.Asked, r.Sealed, r.UserID, r.KeyID, r.Bytes, micros(r.CreatedAt), micros(r.ExpiresAt))
		if err != nil {
			return err
		}
		for _, c := range contents {
			if _, err := tx.ExecContext(ctx, `INSERT INTO approval_contents (approval_id, name, sealed) VALUES (?, ?, ?)`, r.ID, c.Name, c.Sealed); err != nil {
				return err
			}
		}
		return nil
	})
}

// Approval gives a request, whose ever it is.
func (s *Store) Approval(ctx context.Context, id string) (approval.Record, error) {
	r, err := scanApproval(s.ro.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE id = ?`, id).Scan)
	return r, one(err, "read approval "+id, "Approval")
}

// ApprovalContent gives a sealed content of a request.
func (s *Store) ApprovalContent(ctx context.Context, id, name string) (sealed []byte, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT sealed FROM approval_contents WHERE approval_id = ? AND name = ?`, id, name).Scan(&sealed)
	return sealed, one(err, "read content of approval "+id, "Content")
}

// PutApprovalEffect keeps what a command did in a copy; contents that were asked for never change.
func (s *Store) PutApprovalEffect(ctx context.Context, id string, sealed []byte) error {
	return s.write(ctx, "keep effect of approval "+id, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM approval_contents WHERE approval_id = ? AND name = 'effect'`, id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO approval_contents (approval_id, name, sealed) VALUES (?, 'effect', ?)`, id, sealed)
		return err
	})
}

// Approvals gives a page: newest first, of pending ones the oldest.
func (s *Store) Approvals(ctx context.Context, f approval.Filter) ([]approval.Record, error) {
	query, args := `SELECT `+approvalColumns+` FROM approvals WHERE workspace_id = ?`, []any{f.WorkspaceID}
	and := func(cond string, value any) { query, args = query+" AND "+cond, append(args, value) }
	if f.SandboxID != "" {
		and(`sandbox_id = ?`, f.SandboxID)
	}
	if f.Status != "" {
		and(`status = ?`, f.Status)
	}
	if f.Asked != "" {
		and(`status IN ('pending', 'approved') AND asked = ?`, f.Asked)
	}
	order, step := ` ORDER BY seq DESC`, `<`
	if f.Status == approval.Pending {
		order, step = ` ORDER BY seq`, `>`
	}
	if f.Before != "" {
		and(`seq `+step+` (SELECT seq FROM approvals WHERE id = ?)`, f.Before)
	}
	rows, err := s.ro.QueryContext(ctx, query+order+` LIMIT ?`, append(args, f.Limit)...)
	return collect(rows, err, "list approvals", scanApproval)
}

// changeApproval does one update and tells whether it hit.
func (s *Store) changeApproval(ctx context.Context, what, query string, args ...any) (hit bool, err error) {
	err = s.write(ctx, what, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		hit = n == 1
		return err
	})
	return hit, err
}

// DecideApproval says yes or no to a pending request: one statement, so that of two who decide at once one does.
func (s *Store) DecideApproval(ctx context.Context, id, digest string, to approval.Status, d approval.Decision, useBy time.Time) (bool, error) {
	return s.changeApproval(ctx, "decide approval "+id, `UPDATE approvals SET status = ?, decided_by = ?, decided_user = ?, decided_key = ?, decided_at = ?,
		decision_reason = ?, use_by = ? WHERE id = ? AND status = 'pending' AND digest = ? AND expires_at > ?`,
		to, d.By, d.UserID, d.KeyID, micros(d.At), d.Reason, micros(useBy), id, digest, micros(d.At))
}

// ClaimApproval uses an approved request up, once.
func (s *Store) ClaimApproval(ctx context.Context, id, digest string, at time.Time) (bool, error) {
	return s.changeApproval(ctx, "claim approval "+id, `UPDATE approvals SET status = 'used', used_at = ?, outcome = 'unknown'
		WHERE id = ? AND status = 'approved' AND digest = ? AND use_by > ?`, micros(at), id, digest, micros(at))
}

// FinishApproval notes what became of a used request.
func (s *Store) FinishApproval(ctx context.Context, id, outcome string, g approval.Grant) error {
	_, err := s.changeApproval(ctx, "finish approval "+id, `UPDATE approvals SET outcome = ?, grant_terminal = ?, grant_until = ?
		WHERE id = ? AND status = 'used' AND outcome = 'unknown'`, outcome, g.Terminal, micros(g.Until), id)
	return err
}

// EndApproval makes a pending or approved request something final.
func (s *Store) EndApproval(ctx context.Context, id string, to approval.Status, why string) (bool, error) {
	return s.changeApproval(ctx, "end approval "+id, `UPDATE approvals SET status = ?, why = ? WHERE id = ? AND status IN ('pending', 'approved')`, to, why, id)
}

// ExpireApprovals ends all whose time is over, and gives them.
func (s *Store) ExpireApprovals(ctx context.Context, now time.Time) ([]approval.Record, error) {
	var due []approval.Record
	const over = `(status = 'pending' AND expires_at <= ? OR status = 'approved' AND use_by <= ?)`
	rows, err := s.ro.QueryContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE `+over+` LIMIT 500`, micros(now), micros(now))
	due, err = collect(rows, err, "list approvals that are over", scanApproval)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	var ended []approval.Record
	for _, r := range due {
		why := "nobody decided in time"
		if r.Status == approval.Approved {
			why = "it was approved, but not used in time"
		}
		hit, err := s.changeApproval(ctx, "expire approval "+r.ID, `UPDATE approvals SET status = 'expired', why = ? WHERE id = ? AND status = ? AND `+over,
			why, r.ID, r.Status, micros(now), micros(now))
		if err != nil {
			return ended, err
		}
		if hit {
			r.Status, r.Why = approval.Expired, why
			ended = append(ended, r)
		}
	}
	return ended, nil
}

// GrantOf gives until when somebody may type in a terminal; the zero time: not.
func (s *Store) GrantOf(ctx context.Context, sandboxID, terminal, userID, keyID string, now time.Time) (until time.Time, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT coalesce(max(grant_until), 0) FROM approvals WHERE grant_terminal = ? AND sandbox_id = ? AND status = 'used'
		AND user_id = ? AND key_id = ? AND grant_until > ?`, terminal, sandboxID, userID, keyID, micros(now)).Scan(timeColumn{&until})
	return until, one(err, "read grant of "+terminal, "Grant")
}

// CountPending counts the requests that wait, by sandbox.
func (s *Store) CountPending(ctx context.Context, workspaceID string) (map[string]int, error) {
	type row struct {
		id string
		n  int
	}
	rows, err := s.ro.QueryContext(ctx, `SELECT sandbox_id, count(*) FROM approvals WHERE workspace_id = ? AND status = 'pending' GROUP BY sandbox_id`, workspaceID)
	list, err := collect(rows, err, "count approvals", func(scan func(...any) error) (r row, err error) {
		err = scan(&r.id, &r.n)
		return r, err
	})
	out := make(map[string]int, len(list))
	for _, r := range list {
		out[r.id] = r.n
	}
	return out, err
}

// OpenApprovals gives all that are pending or approved, oldest first.
func (s *Store) OpenApprovals(ctx context.Context) ([]approval.Record, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE status IN ('pending', 'approved') ORDER BY seq`)
	return collect(rows, err, "list open approvals", scanApproval)
}

// ShiftApprovals moves what has an end, forward or back.
func (s *Store) ShiftApprovals(ctx context.Context, by time.Duration) error {
	return s.write(ctx, "shift approvals", func(tx *sql.Tx) error {
		us := by.Microseconds()
		_, err := tx.ExecContext(ctx, `UPDATE approvals SET expires_at = expires_at + ?,
			use_by = CASE use_by WHEN 0 THEN 0 ELSE use_by + ? END,
			grant_until = CASE grant_until WHEN 0 THEN 0 ELSE grant_until + ? END
			WHERE status IN ('pending', 'approved') OR grant_until > 0`, us, us, us)
		return err
	})
}

const (
	// keepLarge and keepSmall are how long contents of requests that are over can still be looked at.
	keepLarge  = 24 * time.Hour
	keepSmall  = 90 * 24 * time.Hour
	largeBytes = 1 << 20
)

// PruneApprovals forgets contents of requests that are over: their digests stay.
func (s *Store) PruneApprovals(ctx context.Context, now time.Time) error {
	return s.write(ctx, "prune approvals", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM approval_contents WHERE approval_id IN (SELECT id FROM approvals
			WHERE status NOT IN ('pending', 'approved') AND (created_at < ? OR created_at < ? AND bytes > ?))`,
			micros(now.Add(-keepSmall)), micros(now.Add(-keepLarge)), largeBytes)
		return err
	})
}
