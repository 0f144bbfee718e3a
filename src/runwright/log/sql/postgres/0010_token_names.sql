-- Names of tokens are unique after normalisation (`name_key`), and a token records the token it was created with:
-- a person must not be able to act as a second person.

ALTER TABLE token ADD COLUMN name_key text NOT NULL DEFAULT '';
ALTER TABLE token ADD COLUMN created_with text;  -- token_id; NULL: by a local user
UPDATE token SET name_key = lower(name);
UPDATE token SET name_key = name_key || '|' || token_id
WHERE EXISTS (SELECT 1 FROM token other WHERE lower(other.name) = lower(token.name) AND other.token_id < token.token_id);
CREATE UNIQUE INDEX token_by_name ON token (name_key) WHERE revoked_at IS NULL;
