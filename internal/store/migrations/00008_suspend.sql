-- What is kept of sandboxes: persistent ones are suspended, and snapshots are what new ones start from.
-- +goose Up
ALTER TABLE sandboxes ADD COLUMN persistent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN parent TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN saved_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN saved_bytes INTEGER NOT NULL DEFAULT 0;

CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL,
    image TEXT NOT NULL,
    sandbox_id TEXT NOT NULL, -- of which it was taken; that may be gone
    owner_kind TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    owner_name TEXT NOT NULL,
    cwd TEXT NOT NULL,
    user TEXT NOT NULL,
    env TEXT NOT NULL,
    resources TEXT NOT NULL,
    network TEXT NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0,
    ready INTEGER NOT NULL DEFAULT 0, -- 0 while it is taken
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_by_workspace ON snapshots (workspace_id);

-- +goose Down
DROP TABLE snapshots;
ALTER TABLE sandboxes DROP COLUMN saved_bytes;
ALTER TABLE sandboxes DROP COLUMN saved_at;
ALTER TABLE sandboxes DROP COLUMN parent;
ALTER TABLE sandboxes DROP COLUMN persistent;
