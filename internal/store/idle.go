package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"sandgate/sandbox"
)

var _ sandbox.Deadlines = (*Store)(nil)

const lifeColumns = `idle_timeout, max_lifetime, keep_while_busy, idle_at, expires_at`

func lifeDest(r *sandbox.Record) []any {
	return []any{
		durationColumn{&r.Life.IdleTimeout},
		durationColumn{&r.Life.MaxLifetime},
		&r.Life.KeepWhileBusy,
		timeColumn{&r.IdleAt},
		timeColumn{&r.ExpiresAt},
	}
}

func lifeValues(r sandbox.Record) []any {
	return []any{
		r.Life.IdleTimeout.Microseconds(), r.Life.MaxLifetime.Microseconds(), r.Life.KeepWhileBusy, micros(r.IdleAt), micros(r.ExpiresAt),
	}
}

// durationColumn scans a stored duration, which is in microseconds.
type durationColumn struct{ d *time.Duration }

func (c durationColumn) Scan(v any) error {
	us, ok := v.(int64)
	if !ok {
		return fmt.Errorf("duration column holds %T", v)
	}
	*c.d = time.Duration(us) * time.Microsecond
	return nil
}

// TouchSandbox notes activity and moves the idle deadline with it; it never moves either backwards.
func (s *Store) TouchSandbox(ctx context.Context, id sandbox.ID, at time.Time) error {
	return s.write(ctx, "touch sandbox "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET last_activity = max(last_activity, ?), idle_at = max(idle_at, ? + idle_timeout)
			WHERE id = ?`, micros(at), micros(at), id)
		return err
	})
}

// DueSandboxes lists running ones whose idle deadline is not after a moment, and those, suspended too, whose end of life is not.
func (s *Store) DueSandboxes(ctx context.Context, by time.Time) ([]sandbox.Record, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+sandboxColumns+` FROM `+alive+` AND (status = 'running' AND idle_at <= ?
		OR status IN ('running', 'suspended') AND expires_at > 0 AND expires_at <= ?)`, micros(by), micros(by))
	return collect(rows, err, "list sandboxes that are due", scanSandbox)
}

// SetLife replaces a record's life and its deadlines.
func (s *Store) SetLife(ctx context.Context, id sandbox.ID, l sandbox.Life, idleAt, expiresAt time.Time) error {
	return s.write(ctx, "set life of sandbox "+string(id), func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET idle_timeout = ?, max_lifetime = ?, keep_while_busy = ?, idle_at = ?, expires_at = ?
			WHERE id = ? AND status <> 'gone'`,
			l.IdleTimeout.Microseconds(), l.MaxLifetime.Microseconds(), l.KeepWhileBusy, micros(idleAt), micros(expiresAt), id)
		return some(res, err, "Sandbox")
	})
}

// ExtendIdle moves a record's idle deadline forward, never back.
func (s *Store) ExtendIdle(ctx context.Context, id sandbox.ID, idleAt time.Time) error {
	return s.write(ctx, "extend idle time of sandbox "+string(id), func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET idle_at = max(idle_at, ?) WHERE id = ? AND status <> 'gone'`, micros(idleAt), id)
		return some(res, err, "Sandbox")
	})
}

// ExpireSandbox moves a running record to stopping in one statement, if both deadlines are still those; false if not.
func (s *Store) ExpireSandbox(ctx context.Context, id sandbox.ID, idleAt, expiresAt time.Time, reason string) (moved bool, err error) {
	err = s.write(ctx, "expire sandbox "+string(id), func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET status = 'stopping', reason = ?
			WHERE id = ? AND status = 'running' AND idle_at = ? AND expires_at = ?`, reason, id, micros(idleAt), micros(expiresAt))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		moved = n == 1
		return err
	})
	return moved, err
}

// ShiftDeadlines moves the deadlines of all that are not gone, forward or back.
func (s *Store) ShiftDeadlines(ctx context.Context, by time.Duration) error {
	return s.write(ctx, "shift deadlines", func(tx *sql.Tx) error {
		us := by.Microseconds()
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET
			idle_at = CASE idle_at WHEN 0 THEN 0 ELSE idle_at + ? END,
			expires_at = CASE expires_at WHEN 0 THEN 0 ELSE expires_at + ? END WHERE status <> 'gone'`, us, us)
		return err
	})
}

// GraceDeadlines gives every running one at least grace, less where its own time is shorter, from now on.
func (s *Store) GraceDeadlines(ctx context.Context, now time.Time, grace time.Duration) error {
	return s.write(ctx, "grant grace", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET idle_at = max(idle_at, ? + min(idle_timeout, ?)) WHERE status = 'running'`,
			micros(now), grace.Microseconds())
		return err
	})
}
