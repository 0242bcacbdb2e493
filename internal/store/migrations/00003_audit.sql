-- The record: a hash chain. Rows are never changed or removed by Sandgate; the triggers keep mistakes out, the hashes show malice.
-- +goose Up
CREATE TABLE audit_events (
    seq          INTEGER PRIMARY KEY,
    at           INTEGER NOT NULL,
    workspace_id TEXT NOT NULL,
    actor_kind   TEXT NOT NULL,
    actor_id     TEXT NOT NULL,
    actor        TEXT NOT NULL,
    address      TEXT NOT NULL,
    sandbox_id   TEXT NOT NULL,
    action       TEXT NOT NULL,
    target       TEXT NOT NULL,
    outcome      TEXT NOT NULL,
    duration_us  INTEGER NOT NULL,
    digest       TEXT NOT NULL,
    approval_id  TEXT NOT NULL,
    request_id   TEXT NOT NULL,
    detail       TEXT NOT NULL,
    intent_seq   INTEGER NOT NULL,
    prev_hash    BLOB NOT NULL UNIQUE,
    hash         BLOB NOT NULL
) STRICT;
CREATE INDEX audit_by_workspace ON audit_events (workspace_id, seq);
CREATE INDEX audit_by_sandbox ON audit_events (sandbox_id, seq) WHERE sandbox_id <> '';
CREATE INDEX audit_by_person ON audit_events (actor_id, seq) WHERE workspace_id = '';

-- Intents that have no outcome yet; a convenience for the start after a crash, not a part of the chain.
CREATE TABLE audit_open (
    seq INTEGER PRIMARY KEY
) STRICT;

-- +goose StatementBegin
CREATE TRIGGER audit_events_no_update BEFORE UPDATE ON audit_events BEGIN
    SELECT RAISE(ABORT, 'the record is append-only');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER audit_events_no_delete BEFORE DELETE ON audit_events BEGIN
    SELECT RAISE(ABORT, 'the record is append-only');
END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE audit_open;
DROP TABLE audit_events;
