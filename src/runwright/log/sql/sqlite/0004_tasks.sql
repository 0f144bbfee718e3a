-- Steps that workers carry out. Operational, like leases: the log says what was scheduled, started and ended, and
-- these rows are made anew from it.

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
    lease_no    INTEGER NOT NULL DEFAULT 0, -- raised with each taker: what an earlier one says no longer counts
    lease_until INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0, -- workers that were lost over it
    stop        INTEGER NOT NULL DEFAULT 0, -- 1: asked to stop, 2: by force
    order_body  BLOB,                      -- what the worker is to do, once its start is in the log
    outcome     BLOB,                      -- what it said became of it
    UNIQUE (run_id, path, attempt)
);
CREATE INDEX task_by_queue ON task (queue, task_id) WHERE state = 'OFFERED';
CREATE INDEX task_by_owner ON task (owner);

-- What a worker asks for while it is at it: that a checkpoint be written. And what it handed over to be kept.
CREATE TABLE task_report (
    report_no INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id   INTEGER NOT NULL,
    lease_no  INTEGER NOT NULL,
    body      BLOB NOT NULL,
    answer    TEXT                          -- '' once it is done, else what is wrong; 'kept' for an artifact
);
CREATE INDEX task_report_by_task ON task_report (task_id);
