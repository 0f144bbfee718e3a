-- The log on SQLite.
--
-- Events are stored in commit order: `pos` is the cursor for tailing all runs. This keeps the writes of many
-- runs together in a few pages; clustering by run was measured at a third of the speed.
-- The constants of a run are stored once. Ids, keys and hashes are bytes, payloads verbatim.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE run (
    run_key         INTEGER PRIMARY KEY,
    run_id          TEXT NOT NULL,
    tenant_id       TEXT NOT NULL,
    project_id      TEXT NOT NULL,
    environment_id  TEXT NOT NULL,
    plan_id         TEXT NOT NULL,
    plan_version    TEXT NOT NULL,
    enforcement     TEXT NOT NULL,      -- strict | observe
    created_at      INTEGER NOT NULL,   -- microseconds since 1970, like every time in this schema
    -- The folded summary, updated with every event; `rebuild` computes the same bytes.
    last_seq        INTEGER NOT NULL,
    head            BLOB NOT NULL,      -- hash of the last event
    persisted_at    INTEGER NOT NULL,   -- time of the last event; never decreases
    status          TEXT NOT NULL,
    summary         TEXT NOT NULL,      -- RunSummary as JSON
    provider        TEXT,
    workflow_id     TEXT,
    provider_run_id TEXT,
    edition         INTEGER NOT NULL DEFAULT 0,  -- incremented when the summary is written by anything but an append
    -- The driver of the run. Operational, not folded.
    owner           TEXT,
    epoch           INTEGER,
    wake_at         INTEGER
);

CREATE UNIQUE INDEX run_by_id ON run (run_id);
CREATE INDEX run_by_status ON run (status, run_key);
CREATE INDEX run_by_plan ON run (plan_id, run_key);
CREATE INDEX run_by_tenant ON run (tenant_id, run_key);
CREATE INDEX run_by_creation ON run (created_at);
CREATE INDEX run_by_engine ON run (workflow_id, provider_run_id, provider) WHERE workflow_id IS NOT NULL;
CREATE INDEX run_by_owner ON run (owner) WHERE owner IS NOT NULL;
CREATE INDEX run_by_wake ON run (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE event (
    pos                INTEGER PRIMARY KEY,
    run_key            INTEGER NOT NULL,
    run_seq            INTEGER NOT NULL,
    event_id           BLOB NOT NULL,
    event_type         TEXT NOT NULL,
    schema_version     INTEGER NOT NULL,
    step_id            TEXT,
    engine_attempt_id  INTEGER NOT NULL,
    logical_attempt_id INTEGER NOT NULL,
    idempotency_key    BLOB NOT NULL,
    emitted_at         TEXT NOT NULL,   -- as the producer wrote it
    persisted_at       INTEGER NOT NULL,
    emitted_by         TEXT,
    foreign_event_id   TEXT,
    traceparent        TEXT,
    payload            BLOB,
    payload_digest     BLOB,            -- set only if the payload was erased
    hash               BLOB NOT NULL
);

CREATE UNIQUE INDEX event_by_seq ON event (run_key, run_seq);
CREATE UNIQUE INDEX event_by_key ON event (run_key, idempotency_key);
-- Event ids are looked up to refuse reuse. The ids of a run's first 2048 events are checked in memory, so that
-- the index costs nothing for the many short runs.
CREATE UNIQUE INDEX event_by_id ON event (run_key, event_id) WHERE run_seq > 2048;

CREATE TABLE lease (
    owner      TEXT PRIMARY KEY,
    epoch      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    host       TEXT,
    pid        INTEGER,
    started    TEXT
) WITHOUT ROWID;

CREATE TABLE alert (
    alert_key INTEGER PRIMARY KEY,
    code      TEXT NOT NULL,
    severity  TEXT NOT NULL,
    run_id    TEXT NOT NULL,            -- '' for alerts not about a run
    subject   TEXT NOT NULL,
    detail    TEXT NOT NULL,
    facts     TEXT NOT NULL,
    raised_at INTEGER NOT NULL,
    UNIQUE (code, run_id, subject)
);

-- Columns of the run list: folded data only.
CREATE VIEW run_summary AS
SELECT run_id, tenant_id, project_id, environment_id, plan_id, plan_version, created_at, last_seq, status, summary
FROM run;
