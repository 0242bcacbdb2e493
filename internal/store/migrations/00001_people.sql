-- People, workspaces, memberships, keys, invitations, sessions. Times are microseconds since 1970, UTC.
-- +goose Up
CREATE TABLE users (
    id            TEXT PRIMARY KEY,
    email         TEXT NOT NULL UNIQUE,
    password_hash TEXT NOT NULL,
    admin         INTEGER NOT NULL DEFAULT 0,
    disabled      INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE workspaces (
    id         TEXT PRIMARY KEY,
    slug       TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE members (
    workspace_id TEXT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    user_id      TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    role         TEXT NOT NULL,
    granted      TEXT NOT NULL DEFAULT '',
    joined_at    INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, user_id)
) STRICT;
CREATE INDEX members_by_user ON members (user_id);

CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name         TEXT NOT NULL,
    owner_id     TEXT REFERENCES users (id) ON DELETE CASCADE,
    permissions  TEXT NOT NULL,
    prefix       TEXT NOT NULL UNIQUE,
    hash         BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL DEFAULT 0,
    last_used_at INTEGER NOT NULL DEFAULT 0,
    revoked_at   INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX api_keys_by_workspace ON api_keys (workspace_id, created_at);
CREATE INDEX api_keys_by_owner ON api_keys (owner_id);

CREATE TABLE invitations (
    id           TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    email        TEXT NOT NULL,
    role         TEXT NOT NULL,
    run          INTEGER NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    invited_by   TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    UNIQUE (workspace_id, email)
) STRICT;

CREATE TABLE setup_token (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    hash       BLOB NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    id           TEXT PRIMARY KEY,
    user_id      TEXT REFERENCES users (id) ON DELETE CASCADE,
    data         BLOB NOT NULL,
    address      TEXT NOT NULL,
    user_agent   TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL,
    idle_us      INTEGER NOT NULL,
    ends_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_end ON sessions (ends_at);

-- The epoch grows with every change that can take a right from somebody, whichever process makes it. Whoever keeps a
-- stream open reads this one number, and looks at rights again only when it has grown.
CREATE TABLE authz_epoch (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL
) STRICT;
INSERT INTO authz_epoch (only, epoch) VALUES (1, 1);

-- +goose StatementBegin
CREATE TRIGGER users_epoch AFTER UPDATE OF disabled, admin ON users BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER users_epoch_delete AFTER DELETE ON users BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER members_epoch_insert AFTER INSERT ON members BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER members_epoch AFTER UPDATE ON members BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER members_epoch_delete AFTER DELETE ON members BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER api_keys_epoch AFTER UPDATE OF owner_id, permissions, expires_at, revoked_at ON api_keys BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER api_keys_epoch_delete AFTER DELETE ON api_keys BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER sessions_epoch_delete AFTER DELETE ON sessions BEGIN
    UPDATE authz_epoch SET epoch = epoch + 1;
END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE authz_epoch;
DROP TABLE sessions;
DROP TABLE setup_token;
DROP TABLE invitations;
DROP TABLE api_keys;
DROP TABLE members;
DROP TABLE workspaces;
DROP TABLE users;
