-- Keys that are made for a sandbox and end with it, or with the key that they were made by.
-- +goose Up
ALTER TABLE api_keys ADD COLUMN sandbox_id TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN parent_id TEXT NOT NULL DEFAULT '';
CREATE INDEX api_keys_of_sandbox ON api_keys (sandbox_id) WHERE sandbox_id <> '';
CREATE INDEX api_keys_of_parent ON api_keys (parent_id) WHERE parent_id <> '';

-- +goose Down
DROP INDEX api_keys_of_parent;
DROP INDEX api_keys_of_sandbox;
ALTER TABLE api_keys DROP COLUMN parent_id;
ALTER TABLE api_keys DROP COLUMN sandbox_id;
