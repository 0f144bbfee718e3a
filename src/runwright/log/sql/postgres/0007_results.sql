-- Large results of tasks, if they are configured to be stored in the database.

CREATE TABLE kept_result (
    key text COLLATE "C" PRIMARY KEY,
    body bytea NOT NULL
);
ALTER TABLE kept_result ALTER COLUMN body SET STORAGE EXTERNAL;  -- the writer compresses them if configured
