package store

import (
	"context"
	"database/sql"
	"time"

	"sandgate/auth"
)

const sessionColumns = `id, coalesce(user_id, ''), data, address, user_agent, created_at, last_seen_at, idle_us, ends_at`

func scanSession(scan func(...any) error) (v auth.Session, err error) {
	var idle int64
	err = scan(&v.ID, &v.UserID, &v.Data, &v.Address, &v.UserAgent, timeColumn{&v.CreatedAt}, timeColumn{&v.LastSeenAt}, &idle, timeColumn{&v.EndsAt})
	v.IdleFor = time.Duration(idle) * time.Microsecond
	return v, err
}

// InsertSession adds a session, and sweeps away those that ended before it began.
func (s *Store) InsertSession(ctx context.Context, v auth.Session) error {
	return s.write(ctx, "insert session", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE ends_at <= ? OR last_seen_at + idle_us <= ?`,
			micros(v.CreatedAt), micros(v.CreatedAt)); err != nil {
			return err
		}
		user := sql.NullString{String: v.UserID, Valid: v.UserID != ""}
		_, err := tx.ExecContext(ctx, `INSERT INTO sessions (id, user_id, data, address, user_agent, created_at, last_seen_at, idle_us, ends_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			v.ID, user, nonNil(v.Data), v.Address, v.UserAgent, micros(v.CreatedAt), micros(v.LastSeenAt), v.IdleFor.Microseconds(), micros(v.EndsAt))
		return err
	})
}

// nonNil keeps an empty value from being stored as NULL.
func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// SessionByID gives a session, ended or not.
func (s *Store) SessionByID(ctx context.Context, id string) (auth.Session, error) {
	v, err := scanSession(s.hot.sessionByID.QueryRowContext(ctx, id).Scan)
	return v, one(err, "read session", "Session")
}

// SessionsOf lists a person's sessions, last used first, ended ones too until they are swept.
func (s *Store) SessionsOf(ctx context.Context, userID string) ([]auth.Session, error) {
	rows, err := s.ro.QueryContext(ctx, `SELECT `+sessionColumns+` FROM sessions WHERE user_id = ? ORDER BY last_seen_at DESC LIMIT 500`, userID)
	return collect(rows, err, "list sessions", scanSession)
}

// SaveSessionData replaces what a session carries.
func (s *Store) SaveSessionData(ctx context.Context, id string, data []byte) error {
	return s.write(ctx, "save session", func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sessions SET data = ? WHERE id = ?`, nonNil(data), id)
		return some(res, err, "Session")
	})
}

// TouchSession notes that a session is used, never backwards.
func (s *Store) TouchSession(ctx context.Context, id string, at time.Time) error {
	return s.write(ctx, "touch session", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sessions SET last_seen_at = ? WHERE id = ? AND last_seen_at < ?`, micros(at), id, micros(at))
		return err
	})
}

// DeleteSession ends one; ending it twice is no error.
func (s *Store) DeleteSession(ctx context.Context, id string) error {
	return s.write(ctx, "delete session", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE id = ?`, id)
		return err
	})
}

// DeleteSessionsOf ends all of a person's but the one kept, which may be "".
func (s *Store) DeleteSessionsOf(ctx context.Context, userID, keep string) error {
	return s.write(ctx, "delete sessions", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE user_id = ? AND id <> ?`, userID, keep)
		return err
	})
}

// AuthzEpoch gives the number that grows with each change that can take a right from somebody, in any process.
func (s *Store) AuthzEpoch(ctx context.Context) (n int64, err error) {
	err = s.hot.epoch.QueryRowContext(ctx).Scan(&n)
	return n, one(err, "read epoch", "Epoch")
}
