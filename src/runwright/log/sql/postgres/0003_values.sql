-- Values too large for an event, by content hash: every process that drives runs can read them, on any machine.

CREATE TABLE value (
    sha256 text PRIMARY KEY,
    body   bytea NOT NULL
);
ALTER TABLE value ALTER COLUMN body SET STORAGE EXTERNAL;  -- the writer compresses them if configured
