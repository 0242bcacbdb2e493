package store

import (
	"context"
	"fmt"
)

// Backup writes a whole, consistent copy of the database to a new file at path, while it is used by others.
func (s *Store) Backup(ctx context.Context, path string) error {
	// Not on a read-only connection: SQLite takes VACUUM for a write. It reads one snapshot and holds up writers of this
	// process alone.
	if _, err := s.rw.ExecContext(ctx, `VACUUM INTO ?`, path); err != nil {
		return fmt.Errorf("back up the database to %s: %w", path, err)
	}
	return nil
}
