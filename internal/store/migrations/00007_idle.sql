-- Life by the clock: how long a sandbox may be idle, how long it may live, when each is decided; and the mark of open
-- intents, kept by the database itself so that an event is one statement.
-- +goose Up
-- Durations are microseconds. max_lifetime 0: no end. idle_at and expires_at are deadlines, 0: none; they only ever decide
-- together with a look at the sandbox, and are moved by compare-and-set.
ALTER TABLE sandboxes ADD COLUMN idle_timeout INTEGER NOT NULL DEFAULT 900000000;
ALTER TABLE sandboxes ADD COLUMN max_lifetime INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN keep_while_busy INTEGER NOT NULL DEFAULT 1;
ALTER TABLE sandboxes ADD COLUMN idle_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN expires_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sandboxes_by_deadline ON sandboxes (idle_at) WHERE status = 'running';

-- +goose StatementBegin
CREATE TRIGGER audit_open_insert AFTER INSERT ON audit_events WHEN NEW.outcome = 'started' BEGIN
    INSERT INTO audit_open (seq) VALUES (NEW.seq);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER audit_open_delete AFTER INSERT ON audit_events WHEN NEW.outcome <> 'started' AND NEW.intent_seq <> 0 BEGIN
    DELETE FROM audit_open WHERE seq = NEW.intent_seq;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER audit_open_delete;
DROP TRIGGER audit_open_insert;
DROP INDEX sandboxes_by_deadline;
ALTER TABLE sandboxes DROP COLUMN expires_at;
ALTER TABLE sandboxes DROP COLUMN idle_at;
ALTER TABLE sandboxes DROP COLUMN keep_while_busy;
ALTER TABLE sandboxes DROP COLUMN max_lifetime;
ALTER TABLE sandboxes DROP COLUMN idle_timeout;
