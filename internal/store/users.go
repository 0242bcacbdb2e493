package store

import (
	"context"
	"database/sql"
	"time"

	"sandgate/auth"
	"sandgate/internal/fault"
)

const userColumns = `id, email, password_hash, admin, disabled, created_at`

func scanUser(scan func(...any) error) (u auth.User, err error) {
	err = scan(&u.ID, &u.Email, &u.PasswordHash, &u.Admin, &u.Disabled, timeColumn{&u.CreatedAt})
	return u, err
}

// CountUsers tells how many accounts there are, disabled ones included.
func (s *Store) CountUsers(ctx context.Context) (n int, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT count(*) FROM users`).Scan(&n)
	return n, one(err, "count users", "User")
}

// UserByID gives one account.
func (s *Store) UserByID(ctx context.Context, id string) (auth.User, error) {
	u, err := scanUser(s.hot.userByID.QueryRowContext(ctx, id).Scan)
	return u, one(err, "read user", "User")
}

// UserByEmail gives the account of a lower-case address.
func (s *Store) UserByEmail(ctx context.Context, email string) (auth.User, error) {
	u, err := scanUser(s.ro.QueryRowContext(ctx, `SELECT `+userColumns+` FROM users WHERE email = ?`, email).Scan)
	return u, one(err, "read user", "User")
}

// Users lists all accounts by address.
func (s *Store) Users(ctx context.Context) ([]auth.User, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+userColumns+` FROM users ORDER BY email`)
	return collect(rows, err, "list users", scanUser)
}

// InsertUser adds an account; a known address is fault.Conflict.
func (s *Store) InsertUser(ctx context.Context, u auth.User) error {
	return s.write(ctx, "insert user", func(tx *sql.Tx) error { return insertUser(ctx, tx, u) })
}

func insertUser(ctx context.Context, tx *sql.Tx, u auth.User) error {
	res, err := tx.ExecContext(ctx, `INSERT INTO users (`+userColumns+`) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (email) DO NOTHING`,
		u.ID, u.Email, u.PasswordHash, u.Admin, u.Disabled, micros(u.CreatedAt))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		if err != nil {
			return err
		}
		return fault.New(fault.Conflict, "There is an account with this e-mail address already.")
	}
	return nil
}

// SetPassword replaces a password's hash. With endSessions the person is signed out everywhere.
func (s *Store) SetPassword(ctx context.Context, userID, hash string, endSessions bool) error {
	return s.write(ctx, "set password", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE users SET password_hash = ? WHERE id = ?`, hash, userID)
		if err := some(res, err, "User"); err != nil || !endSessions {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM sessions WHERE user_id = ?`, userID)
		return err
	})
}

// SetDisabled disables an account, which ends its sessions, or enables it again.
func (s *Store) SetDisabled(ctx context.Context, userID string, disabled bool) error {
	return s.write(ctx, "disable user", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE users SET disabled = ? WHERE id = ?`, disabled, userID)
		if err := some(res, err, "User"); err != nil || !disabled {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM sessions WHERE user_id = ?`, userID)
		return err
	})
}

// SetSetupToken keeps the hash of the link for the first administrator; the one before dies.
func (s *Store) SetSetupToken(ctx context.Context, hash []byte, expires time.Time) error {
	return s.write(ctx, "set setup token", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO setup_token (only, hash, expires_at) VALUES (1, ?, ?)
			ON CONFLICT (only) DO UPDATE SET hash = excluded.hash, expires_at = excluded.expires_at`, hash, micros(expires))
		return err
	})
}

// SetupTokenLive reports whether hash is that of the present setup token.
func (s *Store) SetupTokenLive(ctx context.Context, hash []byte, now time.Time) (live bool, err error) {
	err = s.ro.QueryRowContext(ctx, `SELECT count(*) FROM setup_token WHERE hash = ? AND expires_at > ?`, hash, micros(now)).Scan(&live)
	return live, one(err, "read setup token", "Token")
}

// CreateFirst makes the first administrator with a workspace and uses the token up, all or nothing. With an account
// there already, or another token, it is fault.Forbidden. The workspace is returned as it is stored.
func (s *Store) CreateFirst(ctx context.Context, tokenHash []byte, now time.Time, u auth.User, w auth.Workspace, m auth.Member) (stored auth.Workspace, err error) {
	err = s.write(ctx, "create first administrator", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM setup_token WHERE hash = ? AND expires_at > ? AND NOT EXISTS (SELECT 1 FROM users)`,
			tokenHash, micros(now))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return fault.Wrap(err, fault.Forbidden, "This link was used already or is too old.")
		}
		if err := insertUser(ctx, tx, u); err != nil {
			return err
		}
		stored, err = insertWorkspace(ctx, tx, w, m)
		return err
	})
	return stored, err
}
