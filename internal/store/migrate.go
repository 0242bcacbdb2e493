package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrate brings the schema up to date, one process at a time.
func migrate(ctx context.Context, db *sql.DB, path string) (err error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // closing unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	dir, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	// Out of order too: branches that grew beside each other have numbers of their own.
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir, goose.WithDisableGlobalRegistry(true), goose.WithAllowOutofOrder(true))
	if err != nil {
		return err
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if have > want {
		return fault.New(fault.Conflict, "The data directory was used by a newer Sandgate (schema %d, this one knows %d). Use that version, or restore a backup.", have, want)
	}
	if pending, err := p.HasPending(ctx); err != nil || !pending {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

func splitWords(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}
