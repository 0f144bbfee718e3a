-- Large results of tasks, for those who want them in the database.

CREATE TABLE kept_result (
    key text COLLATE "C" PRIMARY KEY,
    body bytea NOT NULL
);
ALTER TABLE kept_result ALTER COLUMN body SET STORAGE EXTERNAL;  -- they are compressed by whoever wants them so
