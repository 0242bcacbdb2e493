package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// counted are the sandboxes that count against a quota: those that hold something of the host, or will.
const counted = alive + ` AND status <> 'failed'`

// withinQuota refuses one more sandbox than the quota allows. Writers wait for each other, so of two at the limit one wins.
func withinQuota(ctx context.Context, tx *sql.Tx, workspaceID string, q sandbox.Quota) error {
	for _, bound := range []struct {
		most  int
		where string
		args  []any
		words string
	}{
		{q.Workspace, ` AND workspace_id = ?`, []any{workspaceID}, "This workspace has %d sandboxes, which is as many as it may have: kill one that is not needed, or ask for a higher limit."},
		{q.All, ``, nil, "There are %d sandboxes on this installation, which is as many as it may have: kill one that is not needed, or ask the operator for a higher limit."},
	} {
		if bound.most <= 0 {
			continue
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM `+counted+bound.where, bound.args...).Scan(&n); err != nil {
			return err
		}
		if n >= bound.most {
			return fault.New(fault.QuotaExceeded, bound.words, n)
		}
	}
	return nil
}

// CountSandboxes counts a workspace's sandboxes as its quota does.
func (s *Store) CountSandboxes(ctx context.Context, workspaceID string) (n int, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT count(*) FROM `+counted+` AND workspace_id = ?`, workspaceID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count sandboxes of workspace %s: %w", workspaceID, err)
	}
	return n, nil
}

// SetResources notes other limits of a sandbox.
func (s *Store) SetResources(ctx context.Context, id sandbox.ID, res sandbox.Resources) error {
	resources, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("set resources of sandbox %s: %w", id, err)
	}
	return s.write(ctx, "set resources of sandbox "+string(id), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET resources = ? WHERE id = ?`, string(resources), id)
		return err
	})
}

// WorkspaceLimits gives what a workspace has set; zero fields are not set.
func (s *Store) WorkspaceLimits(ctx context.Context, workspaceID string) (sandbox.Resources, int, error) {
	var cpu sql.NullFloat64
	var memory, disk, pids, sandboxes sql.NullInt64
	err := s.ro.QueryRowContext(ctx, `SELECT cpu, memory_mb, disk_mb, pids, sandboxes FROM workspace_limits WHERE workspace_id = ?`, workspaceID).
		Scan(&cpu, &memory, &disk, &pids, &sandboxes)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return sandbox.Resources{}, 0, fmt.Errorf("limits of workspace %s: %w", workspaceID, err)
	}
	return sandbox.Resources{CPU: cpu.Float64, MemoryMB: memory.Int64, DiskMB: disk.Int64, PIDs: pids.Int64}, int(sandboxes.Int64), nil
}

// SetWorkspaceLimits replaces what a workspace has set; zero fields become not set.
func (s *Store) SetWorkspaceLimits(ctx context.Context, workspaceID string, most sandbox.Resources, sandboxes int) error {
	return s.write(ctx, "set limits of workspace "+workspaceID, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO workspace_limits (workspace_id, cpu, memory_mb, disk_mb, pids, sandboxes)
			VALUES (?, nullif(?, 0.0), nullif(?, 0), nullif(?, 0), nullif(?, 0), nullif(?, 0)) ON CONFLICT (workspace_id) DO UPDATE SET
			cpu = excluded.cpu, memory_mb = excluded.memory_mb, disk_mb = excluded.disk_mb, pids = excluded.pids, sandboxes = excluded.sandboxes`,
			workspaceID, most.CPU, most.MemoryMB, most.DiskMB, most.PIDs, sandboxes)
		return err
	})
}
