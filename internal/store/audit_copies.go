package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"sandgate/internal/audit"
)

const copyColumns = `c.seq, c.at, ifnull(e.output_digest, ''), c.stdout, c.stderr, c.stdout_total, c.stderr_total, c.cut
	FROM audit_outputs c LEFT JOIN audit_events e ON e.seq = c.seq`

func scanCopy(scan func(...any) error) (c audit.Copy, err error) {
	err = scan(&c.Seq, timeColumn{&c.At}, &c.Recorded, &c.Stdout, &c.Stderr, &c.StdoutTotal, &c.StderrTotal, &c.Cut)
	return c, err
}

// PutAuditOutputs keeps copies of outputs.
func (s *Store) PutAuditOutputs(ctx context.Context, copies []audit.Copy) error {
	return s.write(ctx, "keep copies of outputs", func(tx *sql.Tx) error {
		for _, c := range copies {
			_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO audit_outputs (seq, at, stdout_total, stderr_total, cut, bytes, stdout, stderr)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, c.Seq, micros(c.At), c.StdoutTotal, c.StderrTotal, c.Cut, len(c.Stdout)+len(c.Stderr), blob(c.Stdout), blob(c.Stderr))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// blob is never NULL.
func blob(p []byte) []byte {
	if p == nil {
		return []byte{}
	}
	return p
}

// AuditOutputs gives copies after a seq, in order.
func (s *Store) AuditOutputs(ctx context.Context, after int64, limit int) ([]audit.Copy, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+copyColumns+` WHERE c.seq > ? ORDER BY c.seq LIMIT ?`, after, limit)
	return collect(rows, err, "read copies of outputs", scanCopy)
}

// pruneBatch is how many copies go in one transaction: it holds the writers of events up.
const pruneBatch = 64

// PruneAuditOutputs removes the oldest copies while they are from before a moment, or while all are larger than most.
func (s *Store) PruneAuditOutputs(ctx context.Context, before time.Time, most int64) (more bool, err error) {
	sizes, err := s.copySizes(ctx)
	if err != nil || sizes.Copies == 0 || sizes.CopiesBytes <= most && !sizes.OldestCopy.Before(before) {
		return false, err
	}
	rows, err := s.ro.QueryContext(ctx, `SELECT seq, at, bytes FROM audit_outputs ORDER BY seq LIMIT ?`, pruneBatch)
	type old struct{ seq, at, bytes int64 }
	oldest, err := collect(rows, err, "read copies of outputs", func(scan func(...any) error) (o old, err error) {
		err = scan(&o.seq, &o.at, &o.bytes)
		return o, err
	})
	if err != nil {
		return false, err
	}
	var last int64
	left := sizes.CopiesBytes
	for _, o := range oldest {
		if left <= most && o.at >= micros(before) {
			break
		}
		left -= o.bytes
		last = o.seq
	}
	if last == 0 {
		return false, nil
	}
	_, err = s.rw.ExecContext(ctx, `DELETE FROM audit_outputs WHERE seq <= ?`, last)
	if err != nil {
		return false, fmt.Errorf("remove old copies of outputs: %w", err)
	}
	return true, nil
}

func (s *Store) copySizes(ctx context.Context) (out audit.Sizes, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT count(*), ifnull(sum(bytes), 0), ifnull(min(at), 0) FROM audit_outputs`).
		Scan(&out.Copies, &out.CopiesBytes, timeColumn{&out.OldestCopy})
	if err != nil {
		return out, fmt.Errorf("measure copies of outputs: %w", err)
	}
	return out, nil
}

// AuditSizes tells how much there is of the record.
func (s *Store) AuditSizes(ctx context.Context) (audit.Sizes, error) {
	out, err := s.copySizes(ctx)
	if err != nil {
		return out, err
	}
	err = s.ro.QueryRowContext(ctx, `SELECT (SELECT ifnull(max(seq), 0) FROM audit_events),
		(SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)`).Scan(&out.Events, &out.Database)
	if err != nil {
		return out, fmt.Errorf("measure the record: %w", err)
	}
	return out, nil
}
