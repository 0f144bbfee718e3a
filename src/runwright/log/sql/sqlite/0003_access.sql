-- Access: tokens, audit records and start requests. Operational: none of this is an event, none of it is folded.

-- Tokens are stored as digests: reading this table does not reveal usable tokens.
CREATE TABLE token (
    token_id   TEXT PRIMARY KEY,
    name       TEXT NOT NULL,           -- the actor
    digest     BLOB NOT NULL,          -- SHA-256 of the secret part
    tenant_id  TEXT,                    -- NULL: every tenant
    roles      TEXT NOT NULL,           -- JSON list
    scopes     TEXT NOT NULL,           -- JSON list
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
);

-- Grants and denials. Reads are counted, one row per minute; each action has its own row.
CREATE TABLE audit (
    audit_key  INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    outcome    TEXT NOT NULL,           -- GRANTED | DENIED
    action     TEXT NOT NULL,
    tenant_id  TEXT NOT NULL,           -- '' if unknown, also in the columns below
    actor_id   TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    code       TEXT NOT NULL,
    facts      TEXT NOT NULL            -- JSON: role, token, address, request id, ...
);
CREATE INDEX audit_by_run ON audit (run_id, audit_key) WHERE run_id <> '';
CREATE INDEX audit_by_actor ON audit (actor_id, audit_key);
CREATE INDEX audit_by_tenant ON audit (tenant_id, audit_key);
CREATE INDEX audit_by_time ON audit (at);

-- A request to start a run, and the run it started: repeating the request returns the same run.
CREATE TABLE run_request (
    tenant_id      TEXT NOT NULL,
    project_id     TEXT NOT NULL,
    environment_id TEXT NOT NULL,
    plan_id        TEXT NOT NULL,
    plan_version   TEXT NOT NULL,
    run_request_id TEXT NOT NULL,
    run_id         TEXT NOT NULL,
    PRIMARY KEY (tenant_id, project_id, environment_id, plan_id, plan_version, run_request_id)
);
