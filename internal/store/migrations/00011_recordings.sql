-- Recordings of terminals, which outlive their sandboxes, and what each workspace asks for.
-- +goose Up
CREATE TABLE recordings (
    id           TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL REFERENCES workspaces (id),
    sandbox_id   TEXT NOT NULL, -- that may be gone
    label        TEXT NOT NULL,
    pty          TEXT NOT NULL,
    part         INTEGER NOT NULL,
    by_kind      TEXT NOT NULL,
    by_id        TEXT NOT NULL,
    by_name      TEXT NOT NULL,
    input        INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER NOT NULL DEFAULT 0, -- 0: it goes on
    ended        TEXT NOT NULL DEFAULT '',   -- how
    bytes        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX recordings_by_workspace ON recordings (workspace_id, started_at);
CREATE INDEX recordings_by_sandbox ON recordings (sandbox_id, started_at);
CREATE INDEX recordings_open ON recordings (id) WHERE ended_at = 0;

-- A workspace without a row has the default.
CREATE TABLE recording_policies (
    workspace_id TEXT PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    mode         TEXT NOT NULL,
    input        INTEGER NOT NULL,
    max_mb       INTEGER NOT NULL,
    total_mb     INTEGER NOT NULL,
    keep_days    INTEGER NOT NULL
) STRICT;

-- +goose Down
DROP TABLE recording_policies;
DROP TABLE recordings;
