-- What workspaces, keys, sandboxes and snapshots ask approval for, and which start of a sandbox it is that runs.
-- +goose Up
CREATE TABLE policies (
    subject      TEXT PRIMARY KEY, -- the id of what it is for
    workspace_id TEXT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    body         TEXT NOT NULL,
    changed_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX policies_by_workspace ON policies (workspace_id);

-- Whoever keeps policies in memory, or a terminal open, looks again when the epoch has grown.
-- +goose StatementBegin
CREATE TRIGGER policies_epoch_insert AFTER INSERT ON policies BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER policies_epoch AFTER UPDATE ON policies BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER policies_epoch_delete AFTER DELETE ON policies BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd

ALTER TABLE sandboxes ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 1;

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN incarnation;
DROP TABLE policies;
