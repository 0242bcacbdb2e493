-- What a sandbox may reach. Those made before had no network at all.
-- +goose Up
ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '{"mode":"none","allow":[]}';

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN network;
