-- Requests for approval. What was asked for is in sealed, which never changes; the triggers hold that and the order of statuses.
-- +goose Up
CREATE TABLE approvals (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    workspace_id    TEXT NOT NULL,
    sandbox_id      TEXT NOT NULL,
    kind            TEXT NOT NULL,
    status          TEXT NOT NULL,
    digest          TEXT NOT NULL,
    asked           TEXT NOT NULL,
    sealed          BLOB NOT NULL,
    user_id         TEXT NOT NULL,
    key_id          TEXT NOT NULL,
    bytes           INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    decided_by      TEXT NOT NULL DEFAULT '',
    decided_user    TEXT NOT NULL DEFAULT '',
    decided_key     TEXT NOT NULL DEFAULT '',
    decided_at      INTEGER NOT NULL DEFAULT 0,
    decision_reason TEXT NOT NULL DEFAULT '',
    use_by          INTEGER NOT NULL DEFAULT 0,
    used_at         INTEGER NOT NULL DEFAULT 0,
    outcome         TEXT NOT NULL DEFAULT '',
    why             TEXT NOT NULL DEFAULT '',
    grant_terminal  TEXT NOT NULL DEFAULT '',
    grant_until     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX approvals_by_workspace ON approvals (workspace_id, status, seq);
CREATE INDEX approvals_by_sandbox ON approvals (sandbox_id, status, seq);
CREATE INDEX approvals_open ON approvals (status, expires_at) WHERE status IN ('pending', 'approved');
CREATE INDEX approvals_granted ON approvals (grant_terminal) WHERE grant_terminal <> '';

CREATE TABLE approval_contents (
    approval_id TEXT NOT NULL REFERENCES approvals (id) ON DELETE CASCADE,
    name        TEXT NOT NULL,
    sealed      BLOB NOT NULL,
    PRIMARY KEY (approval_id, name)
) STRICT;

-- +goose StatementBegin
CREATE TRIGGER approvals_fixed BEFORE UPDATE OF id, workspace_id, sandbox_id, kind, digest, asked, sealed, user_id, key_id, created_at ON approvals BEGIN
    SELECT RAISE(ABORT, 'what was asked for does not change');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER approvals_order BEFORE UPDATE OF status ON approvals
WHEN NOT (OLD.status = 'pending' AND NEW.status IN ('approved', 'denied', 'expired', 'cancelled', 'void')
    OR OLD.status = 'approved' AND NEW.status IN ('used', 'expired', 'cancelled', 'void')) BEGIN
    SELECT RAISE(ABORT, 'that is no step of a request');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER approval_contents_fixed BEFORE UPDATE ON approval_contents BEGIN
    SELECT RAISE(ABORT, 'what was asked for does not change');
END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE approval_contents;
DROP TABLE approvals;
