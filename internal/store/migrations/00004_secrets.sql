-- Secrets of sandboxes, sealed by a key that is not in the database. A row lives as long as its sandbox.
-- +goose Up
CREATE TABLE sandbox_secrets (
    sandbox_id TEXT PRIMARY KEY,
    sealed     BLOB NOT NULL
) STRICT;

-- +goose Down
DROP TABLE sandbox_secrets;
