// Package store owns the SQLite database of a data directory: its schema, its migrations and every SQL statement. It must
// never decide who may do what, and nothing that could hold a secret in clear is written by it.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"sandgate/auth"
	"sandgate/internal/fault"
)

// Store is one open database. Safe for concurrent use; several processes may have the same file open.
type Store struct {
	// rw has one connection, so that writers of this process queue here instead of in SQLite's busy handler, which sleeps.
	rw    *sql.DB
	ro    *sql.DB
	audit auditStatements // on rw
	hot   hotStatements   // on ro
}

// Open opens or makes the database at path and brings its schema up to date. The directory is made with mode 0700, the
// file with 0600. A database that a newer Sandgate has migrated is refused.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	if err := prepareFile(path); err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	s := &Store{}
	if s.rw, err = sql.Open("sqlite", dsn(path, false)); err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	s.rw.SetMaxOpenConns(1)
	s.rw.SetMaxIdleConns(1)
	if err := migrate(ctx, s.rw, path); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate database %s: %w", path, err), s.rw.Close())
	}
	if s.audit, err = prepareAudit(ctx, s.rw); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), s.rw.Close())
	}
	if s.ro, err = sql.Open("sqlite", dsn(path, true)); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), s.rw.Close())
	}
	s.ro.SetMaxOpenConns(8)
	s.ro.SetMaxIdleConns(8)
	if s.hot, err = prepareHot(ctx, s.ro); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), s.Close())
	}
	return s, nil
}

// Close waits for running statements and closes the database.
func (s *Store) Close() error { return errors.Join(s.ro.Close(), s.rw.Close()) }

func prepareFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// SQLite gives its -wal and -shm files the mode of the database.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

func dsn(path string, readOnly bool) string {
	q := url.Values{"_pragma": {
		"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(NORMAL)", "foreign_keys(1)", "trusted_schema(0)",
	}}
	if readOnly {
		q.Add("_pragma", "query_only(1)")
	} else {
		q.Set("_txlock", "immediate")
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// hotStatements are the reads of every call and page, prepared once: parsing takes most of the time of a small read.
type hotStatements struct {
	keyByPrefix, keyByID, sandboxByID, userByID, sessionByID, memberBySlug, epoch *sql.Stmt // closed with the database
}

func prepareHot(ctx context.Context, db *sql.DB) (h hotStatements, err error) {
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&h.keyByPrefix, keyHolderQuery + `k.prefix = ?`},
		{&h.keyByID, keyHolderQuery + `k.id = ?`},
		{&h.sandboxByID, `SELECT ` + sandboxColumns + ` FROM sandboxes WHERE id = ?`},
		{&h.userByID, `SELECT ` + userColumns + ` FROM users WHERE id = ?`},
		{&h.sessionByID, `SELECT ` + sessionColumns + ` FROM sessions WHERE id = ?`},
		{&h.memberBySlug, `SELECT ` + memberColumns + `, ` + workspaceColumns + `
			FROM workspaces w JOIN members m ON m.workspace_id = w.id JOIN users u ON u.id = m.user_id
			WHERE w.slug = ? AND m.user_id = ?`},
		{&h.epoch, `SELECT epoch FROM authz_epoch`},
	} {
		if *p.stmt, err = db.PrepareContext(ctx, p.text); err != nil {
			return h, err
		}
	}
	return h, nil
}

// write runs do in one immediate transaction: nobody else, in any process, writes in between.
func (s *Store) write(ctx context.Context, what string, do func(tx *sql.Tx) error) error {
	tx, err := s.rw.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: begin: %w", what, err)
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // the first error tells more
		if _, ours := errors.AsType[*fault.Error](err); ours {
			return err
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%s: commit: %w", what, err)
	}
	return nil
}

// one turns sql.ErrNoRows into fault.NotFound about a noun, and names the operation in every other error.
func one(err error, what, noun string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return fault.New(fault.NotFound, "%s not found", noun)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// some makes an update that touched nothing into fault.NotFound.
func some(res sql.Result, err error, noun string) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return fault.New(fault.NotFound, "%s not found", noun)
	}
	return err
}

// micros is how times are stored; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// timeColumn scans a stored time.
type timeColumn struct{ t *time.Time }

func (c timeColumn) Scan(v any) error {
	us, ok := v.(int64)
	if !ok {
		return fmt.Errorf("time column holds %T", v)
	}
	*c.t = fromMicros(us)
	return nil
}

// permissionColumn scans a stored set; words that this version does not know give no rights.
type permissionColumn struct{ ps *auth.Permissions }

func (c permissionColumn) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("permission column holds %T", v)
	}
	*c.ps = nil
	var words auth.Permissions
	for _, w := range splitWords(text) {
		words = append(words, auth.Permission(w))
	}
	*c.ps = words.Sorted()
	return nil
}

// collect scans all rows of a query.
func collect[T any](rows *sql.Rows, err error, what string, scan func(func(...any) error) (T, error)) (out []T, _ error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		v, err := scan(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}
