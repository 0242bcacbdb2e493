package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"sandgate/sandbox/term/recording"
)

const recordingColumns = `id, workspace_id, sandbox_id, label, pty, part, by_kind, by_id, by_name, input, started_at, ended_at, ended, bytes`

func scanRecording(scan func(...any) error) (r recording.Recording, err error) {
	err = scan(
		&r.ID, &r.WorkspaceID, &r.SandboxID, &r.Label, &r.PTY, &r.Part, &r.ByKind, &r.ByID, &r.By, &r.Input,
		timeColumn{&r.StartedAt},
		timeColumn{&r.EndedAt},
		&r.End, &r.Bytes,
	)
	return r, err
}

// RecordingPolicy gives what a workspace asks for, the default where it has set nothing.
func (s *Store) RecordingPolicy(ctx context.Context, workspaceID string) (recording.Policy, error) {
	p := recording.DefaultPolicy()
	err := s.ro.QueryRowContext(ctx, `SELECT mode, input, max_mb, total_mb, keep_days FROM recording_policies WHERE workspace_id = ?`, workspaceID).
		Scan(&p.Mode, &p.Input, &p.MaxMB, &p.TotalMB, &p.KeepDays)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return p, fmt.Errorf("recording policy of workspace %s: %w", workspaceID, err)
	}
	return p, nil
}

// SetRecordingPolicy replaces it.
func (s *Store) SetRecordingPolicy(ctx context.Context, workspaceID string, p recording.Policy) error {
	return s.write(ctx, "set recording policy of workspace "+workspaceID, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO recording_policies (workspace_id, mode, input, max_mb, total_mb, keep_days) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (workspace_id) DO UPDATE SET mode = excluded.mode, input = excluded.input, max_mb = excluded.max_mb,
			total_mb = excluded.total_mb, keep_days = excluded.keep_days`,
			workspaceID, p.Mode, p.Input, p.MaxMB, p.TotalMB, p.KeepDays)
		return err
	})
}

// InsertRecording notes that one begins.
func (s *Store) InsertRecording(ctx context.Context, r recording.Recording) error {
	return s.write(ctx, "insert recording "+r.ID, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO recordings (`+recordingColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.WorkspaceID, r.SandboxID, r.Label, r.PTY, r.Part, r.ByKind, r.ByID, r.By, r.Input,
			micros(r.StartedAt), micros(r.EndedAt), r.End, r.Bytes)
		return err
	})
}

// FinishRecording notes that one has ended, how, and how large it is. One that has ended already stays as it is.
func (s *Store) FinishRecording(ctx context.Context, id string, at time.Time, how string, bytes int64) error {
	return s.write(ctx, "finish recording "+id, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE recordings SET ended_at = ?, ended = ?, bytes = ? WHERE id = ? AND ended_at = 0`, micros(at), how, bytes, id)
		return err
	})
}

// MeasureRecording notes how large one is that goes on.
func (s *Store) MeasureRecording(ctx context.Context, id string, bytes int64) error {
	return s.write(ctx, "measure recording "+id, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE recordings SET bytes = ? WHERE id = ? AND ended_at = 0`, bytes, id)
		return err
	})
}

// RecordingByID gives one.
func (s *Store) RecordingByID(ctx context.Context, id string) (recording.Recording, error) {
	r, err := scanRecording(s.ro.QueryRowContext(ctx, `SELECT `+recordingColumns+` FROM recordings WHERE id = ?`, id).Scan)
	return r, one(err, "read recording "+id, "Recording")
}

// Recordings lists, newest first.
func (s *Store) Recordings(ctx context.Context, f recording.Filter) ([]recording.Recording, error) {
	where, args := []string{"workspace_id = ?"}, []any{f.WorkspaceID}
	if f.SandboxID != "" {
		where, args = append(where, "sandbox_id = ?"), append(args, f.SandboxID)
	}
	if f.PTYs != nil {
		where = append(where, "pty IN ("+strings.TrimSuffix(strings.Repeat("?, ", len(f.PTYs)), ", ")+")")
		for _, p := range f.PTYs {
			args = append(args, p)
		}
	}
	if !f.Before.IsZero() {
		where, args = append(where, "(started_at, id) < (?, ?)"), append(args, micros(f.Before), f.BeforeID)
	}
	if f.Limit <= 0 {
		f.Limit = 1000
	}
	rows, err := s.ro.QueryContext(ctx, `SELECT `+recordingColumns+` FROM recordings WHERE `+strings.Join(where, " AND ")+
		` ORDER BY started_at DESC, id DESC LIMIT ?`, append(args, f.Limit)...)
	return collect(rows, err, "list recordings", scanRecording)
}

// OpenRecordings lists those that go on, of all workspaces.
func (s *Store) OpenRecordings(ctx context.Context) ([]recording.Recording, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+recordingColumns+` FROM recordings WHERE ended_at = 0`)
	return collect(rows, err, "list open recordings", scanRecording)
}

// RecordingIDs lists all there are.
func (s *Store) RecordingIDs(ctx context.Context) ([]string, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT id FROM recordings`)
	return collect(rows, err, "list recordings", func(scan func(...any) error) (id string, err error) {
		err = scan(&id)
		return id, err
	})
}

// RecordingTotals gives the bytes of each workspace's recordings.
func (s *Store) RecordingTotals(ctx context.Context) (map[string]int64, error) {
	type total struct {
		workspace string
		bytes     int64
	}
	rows, err := s.ro.QueryContext(ctx, `SELECT workspace_id, sum(bytes) FROM recordings GROUP BY workspace_id`)
	list, err := collect(rows, err, "sum recordings", func(scan func(...any) error) (t total, err error) {
		err = scan(&t.workspace, &t.bytes)
		return t, err
	})
	out := map[string]int64{}
	for _, t := range list {
		out[t.workspace] = t.bytes
	}
	return out, err
}

// OldestRecordings lists those of a workspace that have ended, the one that ended first coming first.
func (s *Store) OldestRecordings(ctx context.Context, workspaceID string, limit int) ([]recording.Recording, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+recordingColumns+` FROM recordings WHERE workspace_id = ? AND ended_at > 0
		ORDER BY ended_at, id LIMIT ?`, workspaceID, limit)
	return collect(rows, err, "list the oldest recordings", scanRecording)
}

// DeleteRecording forgets one.
func (s *Store) DeleteRecording(ctx context.Context, id string) error {
	return s.write(ctx, "delete recording "+id, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM recordings WHERE id = ?`, id)
		return some(res, err, "Recording")
	})
}
