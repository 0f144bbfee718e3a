-- Values too large for an event, by their content: every process that drives runs can read them, wherever it is.

CREATE TABLE value (
    sha256 text PRIMARY KEY,
    body   bytea NOT NULL
);
ALTER TABLE value ALTER COLUMN body SET STORAGE EXTERNAL;  -- they are compressed by whoever wants them so
