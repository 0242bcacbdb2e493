-- What a workspace allows its sandboxes. NULL: the installation's ceiling.
-- +goose Up
CREATE TABLE workspace_limits (
    workspace_id TEXT PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    cpu          REAL,
    memory_mb    INTEGER,
    disk_mb      INTEGER,
    pids         INTEGER,
    sandboxes    INTEGER
) STRICT;

-- +goose Down
DROP TABLE workspace_limits;
