-- Steps executed by workers. Operational, like leases: the log records what was scheduled, started and ended, and
-- these rows are recreated from it.

CREATE TABLE task (
    task_id     INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id      TEXT NOT NULL,
    tenant_id   TEXT NOT NULL,
    path        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    queue       TEXT NOT NULL,
    owner       TEXT NOT NULL,              -- the process that drives the run
    state       TEXT NOT NULL,              -- OFFERED | HELD | TAKEN | STARTED | DONE
    worker      TEXT,
    lease_no    INTEGER NOT NULL DEFAULT 0, -- incremented with each claim: reports of earlier claims are ignored
    lease_until INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0, -- workers lost while executing it
    stop        INTEGER NOT NULL DEFAULT 0, -- 1: stop requested, 2: stop by force
    order_body  BLOB,                      -- the worker's order, set once the start is in the log
    outcome     BLOB,                      -- the outcome reported by the worker
    UNIQUE (run_id, path, attempt)
);
CREATE INDEX task_by_queue ON task (queue, task_id) WHERE state = 'OFFERED';
CREATE INDEX task_by_owner ON task (owner);

-- Requests of a worker during execution (store a checkpoint), and the artifacts it has stored.
CREATE TABLE task_report (
    report_no INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id   INTEGER NOT NULL,
    lease_no  INTEGER NOT NULL,
    body      BLOB NOT NULL,
    answer    TEXT                          -- '' on success, else the error; 'kept' for an artifact
);
CREATE INDEX task_report_by_task ON task_report (task_id);
