package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"sandgate/internal/store"
	"sandgate/sandbox"
)

const upgradedID = "sbaaaaaaaaaaaaaaaaaaaa"

// olderRows are rows as programs of each schema wrote them, by the migration that made room for them. Add to it what a new
// migration makes room for.
var olderRows = map[int64][]string{
	1: {
		`INSERT INTO users VALUES ('us1', 'p1@example.org', 'x', 1, 0, 1000), ('us2', 'p2@example.org', 'y', 0, 1, 2000)`,
		`INSERT INTO workspaces VALUES ('ws1', 'lab', 'Lab ü', 1000)`,
		`INSERT INTO members VALUES ('ws1', 'us1', 'admin', 'sandboxes:run', 1000)`,
		`INSERT INTO api_keys (id, workspace_id, name, owner_id, permissions, prefix, hash, created_at)
			VALUES ('ke1', 'ws1', 'agent', NULL, 'sandboxes:run', 'sg_12345678', x'01', 1000)`,
		`INSERT INTO invitations VALUES ('in1', 'ws1', 'new@example.org', 'viewer', 0, x'02', 'us1', 1000, 9000)`,
		`INSERT INTO sessions VALUES ('se1', 'us1', x'03', '::1', 'a browser', 1000, 2000, 3000, 4000)`,
	},
	2: {
		`INSERT INTO sandboxes (id, workspace_id, label, image, owner_kind, owner_id, owner_name, status, reason, cwd, user, env, metadata, resources,
			created_at, last_activity) VALUES ('` + upgradedID + `', 'ws1', 'old', 'base', 'key', 'ke1', 'agent', 'running', '', '/work', 'root', '{"A":"b"}', '{}',
			'{"cpu":1,"memory_mb":1024,"disk_mb":4096,"pids":1024}', 1000, 2000)`,
		`INSERT INTO sandbox_steps (sandbox_id, step, at) VALUES ('` + upgradedID + `', 'cgroup', 1000)`,
		`INSERT INTO idempotency_keys VALUES ('ws1', 'k', 'd', '` + upgradedID + `', 1000)`,
	},
	3: {
		`INSERT INTO audit_events (seq, at, workspace_id, actor_kind, actor_id, actor, address, sandbox_id, action, target, outcome, duration_us, digest,
			approval_id, request_id, detail, intent_seq, prev_hash, hash)
			VALUES (1, 1000, 'ws1', 'key', 'ke1', 'agent', '::1', '', 'command.run', 'true', 'started', 0, '', '', 'r', '', 0, x'00', x'01')`,
	},
	4: {`INSERT INTO sandbox_secrets VALUES ('` + upgradedID + `', x'04')`},
	5: {`UPDATE sandboxes SET network = '{"mode":"public","allow":[]}'`},
	6: {`INSERT INTO workspace_limits VALUES ('ws1', 2, NULL, NULL, NULL, 5)`},
	7: {`UPDATE sandboxes SET idle_timeout = 5000000, idle_at = 3000, keep_while_busy = 0`},
	8: {
		`UPDATE sandboxes SET persistent = 1, saved_at = 2500, saved_bytes = 7`,
		`INSERT INTO snapshots VALUES ('snapaaaaaaaaaaaaaaaaaaaa', 'ws1', 'kept', 'base', '` + upgradedID + `', 'key', 'ke1', 'agent', '/work', 'root', '{}',
			'{"cpu":1,"memory_mb":1024,"disk_mb":4096,"pids":1024}', '{"mode":"public","allow":[]}', 7, 1, 1000, 2000)`,
	},
	9: {`UPDATE api_keys SET sandbox_id = '` + upgradedID + `'`},
}

// rowsOf gives every row of every table as text, by table and column, so that what later versions add can be left out.
func rowsOf(t *testing.T, db *sql.DB, columns map[string][]string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for table, names := range columns {
		rows, err := db.Query(`SELECT ` + strings.Join(names, ", ") + ` FROM ` + table + ` ORDER BY 1`)
		require.NoError(t, err, table)
		for rows.Next() {
			values := make([]any, len(names))
			dest := make([]any, len(names))
			for i := range values {
				dest[i] = &values[i]
			}
			require.NoError(t, rows.Scan(dest...))
			out[table] = append(out[table], fmt.Sprintf("%q", values))
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
	}
	return out
}

// columnsOf lists the tables and their columns.
func columnsOf(t *testing.T, db *sql.DB) map[string][]string {
	t.Helper()
	rows, err := db.Query(`SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' AND m.name NOT LIKE 'goose_%' AND m.name NOT LIKE 'audit_search%'`)
	require.NoError(t, err)
	out := map[string][]string{}
	for rows.Next() {
		var table, column string
		require.NoError(t, rows.Scan(&table, &column))
		out[table] = append(out[table], column)
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	return out
}

// A database that a program of any older schema has left is opened: every row and column that it had is there as it was, and
// what came later has a sensible value.
func TestEveryOlderSchemaIsUpgraded(t *testing.T) {
	ctx := context.Background()
	files := os.DirFS("migrations")
	newest := func(p *goose.Provider) int64 { all := p.ListSources(); return all[len(all)-1].Version }
	for version := int64(1); ; version++ {
		path := filepath.Join(t.TempDir(), "sandgate.db")
		raw, err := sql.Open("sqlite", "file:"+path+"?_pragma=foreign_keys(1)")
		require.NoError(t, err)
		raw.SetMaxOpenConns(1)
		p, err := goose.NewProvider(goose.DialectSQLite3, raw, files, goose.WithDisableGlobalRegistry(true))
		require.NoError(t, err)
		if version > newest(p) {
			require.NoError(t, raw.Close())
			return
		}
		if !slices.ContainsFunc(p.ListSources(), func(s *goose.Source) bool { return s.Version == version }) {
			require.NoError(t, raw.Close())
			continue
		}
		_, err = p.UpTo(ctx, version)
		require.NoError(t, err)
		for v := int64(1); v <= version; v++ {
			for _, statement := range olderRows[v] {
				_, err := raw.Exec(statement)
				require.NoError(t, err, statement)
			}
		}
		columns := columnsOf(t, raw)
		before := rowsOf(t, raw, columns)
		require.NoError(t, raw.Close())

		s, err := store.Open(ctx, path)
		require.NoError(t, err, "from schema %d", version)
		require.NoError(t, s.Close())
		raw, err = sql.Open("sqlite", path)
		require.NoError(t, err)
		require.Equal(t, before, rowsOf(t, raw, columns), "from schema %d", version)
		require.NoError(t, raw.Close())

		s, err = store.Open(ctx, path)
		require.NoError(t, err, "from schema %d", version)
		u, err := s.UserByEmail(ctx, "p1@example.org")
		require.NoError(t, err)
		require.True(t, u.Admin)
		if version >= 2 {
			r, err := s.SandboxByID(ctx, upgradedID)
			require.NoError(t, err, "from schema %d", version)
			require.Equal(t, map[string]string{"A": "b"}, r.Env)
			require.Equal(t, version >= 8, r.Persistent)
			require.Positive(t, r.Life.IdleTimeout)
			if version < 5 {
				require.Equal(t, sandbox.NetworkNone, r.Network.Mode, "it had none")
			}
			// What ran under the older version is not ended for having had no deadline.
			require.NoError(t, s.GraceDeadlines(ctx, epochStart, time.Minute))
			due, err := s.DueSandboxes(ctx, epochStart)
			require.NoError(t, err)
			require.Empty(t, due)
		}
		require.NoError(t, s.Close())
	}
}
