-- Sandboxes, the journal of their steps, and keys that make a repeated create answer with the first one's sandbox.
-- +goose Up
CREATE TABLE sandboxes (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    label         TEXT NOT NULL,
    image         TEXT NOT NULL,
    owner_kind    TEXT NOT NULL,
    owner_id      TEXT NOT NULL,
    owner_name    TEXT NOT NULL,
    status        TEXT NOT NULL,
    reason        TEXT NOT NULL,
    cwd           TEXT NOT NULL,
    user          TEXT NOT NULL,
    env           TEXT NOT NULL,
    metadata      TEXT NOT NULL,
    resources     TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    last_activity INTEGER NOT NULL,
    ended_at      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX sandboxes_by_workspace ON sandboxes (workspace_id, created_at);
CREATE INDEX sandboxes_alive ON sandboxes (created_at) WHERE status <> 'gone';

CREATE TABLE sandbox_steps (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox_id TEXT NOT NULL,
    step       TEXT NOT NULL,
    at         INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_steps_by_sandbox ON sandbox_steps (sandbox_id, seq);

CREATE TABLE idempotency_keys (
    workspace_id TEXT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    key          TEXT NOT NULL,
    digest       TEXT NOT NULL,
    sandbox_id   TEXT NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, key)
) STRICT;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (at);

-- +goose Down
DROP TABLE idempotency_keys;
DROP TABLE sandbox_steps;
DROP TABLE sandboxes;
