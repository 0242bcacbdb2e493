-- The record says more: who owns the key, what a write replaced and left, and what a command printed. Rows of format 1 are
-- those from before; the format is part of what is hashed.
-- +goose Up
ALTER TABLE audit_events ADD COLUMN format INTEGER NOT NULL DEFAULT 1;
ALTER TABLE audit_events ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE audit_events ADD COLUMN old_digest TEXT NOT NULL DEFAULT '';
ALTER TABLE audit_events ADD COLUMN new_digest TEXT NOT NULL DEFAULT '';
ALTER TABLE audit_events ADD COLUMN output_digest TEXT NOT NULL DEFAULT '';

-- The outcome of an intent; and what did not go well, which is rare and often looked for.
CREATE INDEX audit_by_intent ON audit_events (intent_seq) WHERE intent_seq <> 0;
CREATE INDEX audit_not_ok ON audit_events (outcome, seq) WHERE outcome NOT IN ('ok', 'started');

-- Copies of what commands printed, beside the chain: they go when they are old or too many, their digests stay.
CREATE TABLE audit_outputs (
    seq          INTEGER PRIMARY KEY, -- of the row whose output_digest it has
    at           INTEGER NOT NULL,
    stdout_total INTEGER NOT NULL,
    stderr_total INTEGER NOT NULL,
    cut          INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    stdout       BLOB NOT NULL,
    stderr       BLOB NOT NULL
) STRICT;

-- The words of the record. The index holds no text of its own and is made after the fact, row by row, up to a mark: it can be
-- thrown away and made again, and nothing of the chain hangs on it.
CREATE VIRTUAL TABLE audit_search USING fts5(
    actor, owner, address, sandbox_id, action, target, detail, approval_id, request_id,
    content='audit_events', content_rowid='seq', columnsize=0, tokenize='unicode61 remove_diacritics 2'
);
CREATE TABLE audit_searchable (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    seq  INTEGER NOT NULL -- the last row that is in the index
) STRICT;
INSERT INTO audit_searchable (only, seq) VALUES (1, 0);

-- +goose Down
DROP TABLE audit_searchable;
DROP TABLE audit_search;
DROP TABLE audit_outputs;
DROP INDEX audit_not_ok;
DROP INDEX audit_by_intent;
ALTER TABLE audit_events DROP COLUMN output_digest;
ALTER TABLE audit_events DROP COLUMN new_digest;
ALTER TABLE audit_events DROP COLUMN old_digest;
ALTER TABLE audit_events DROP COLUMN owner;
ALTER TABLE audit_events DROP COLUMN format;
