-- The journal of steps ends with its sandbox. Those of sandboxes that are gone were kept until now.
-- +goose Up
DELETE FROM sandbox_steps WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = sandbox_id AND status <> 'gone');

-- +goose Down
SELECT 1;
