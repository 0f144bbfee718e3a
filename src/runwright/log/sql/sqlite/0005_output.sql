-- Output of steps, for stores shared by several processes: each of them can show it. Operational, capped, never folded.

CREATE TABLE step_output (
    output_key INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id     TEXT NOT NULL,
    entity     TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    body       BLOB NOT NULL           -- lines of time, stream and text, separated by tabs
);
CREATE INDEX step_output_by_run ON step_output (run_id, output_key);
