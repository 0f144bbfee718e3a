-- name: find_run
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run WHERE run_id = ?;

-- name: run_ids
-- As bytes: an id may be corrupt, and verify must still be able to continue.
SELECT run_key, CAST(run_id AS BLOB) FROM run WHERE run_key < ? ORDER BY run_key DESC LIMIT ?;

-- name: find_runs_by_prefix
-- A range instead of GLOB, which would interpret wildcards in an id.
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run
WHERE run_id >= :prefix AND run_id < :prefix || char(1114111) AND substr(run_id, 1, length(:prefix)) = :prefix
  AND (:tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY run_id LIMIT :limit;

-- name: find_engine_runs
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run
WHERE provider = ?1 AND workflow_id = ?2 AND provider_run_id = ?3 AND (?4 IS NULL OR tenant_id = ?4)
ORDER BY run_key DESC LIMIT ?5;

-- name: list_runs
-- Newest first. The caller fills in conditions from a fixed set; each has its own index.
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run WHERE {conditions} ORDER BY run_key DESC LIMIT {limit};

-- name: read_run
-- The cast lets verify report payloads that another tool has overwritten with text.
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, CAST(payload AS BLOB), payload_digest, hash
FROM event WHERE run_key = ? AND run_seq > ? ORDER BY run_seq LIMIT ?;

-- name: read_run_damaged
-- Same as `read_run` with text as bytes, for files with invalid text.
SELECT run_seq, CAST(event_id AS BLOB), CAST(event_type AS BLOB), schema_version, CAST(step_id AS BLOB),
       engine_attempt_id, logical_attempt_id, CAST(idempotency_key AS BLOB), CAST(emitted_at AS BLOB), persisted_at,
       CAST(emitted_by AS BLOB), CAST(foreign_event_id AS BLOB), CAST(traceparent AS BLOB), CAST(payload AS BLOB),
       CAST(payload_digest AS BLOB), CAST(hash AS BLOB)
FROM event WHERE run_key = ? AND run_seq > ? ORDER BY run_seq LIMIT ?;

-- name: read_fold
-- Only the columns that a fold needs.
SELECT run_seq, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, emitted_at, persisted_at,
       CAST(payload AS BLOB)
FROM event WHERE run_key = ? ORDER BY run_seq;

-- name: read_tail
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, CAST(payload AS BLOB), payload_digest, hash, pos, run_key
FROM event WHERE pos > ? ORDER BY pos LIMIT ?;

-- name: run_identity
SELECT run_id, tenant_id, project_id, environment_id, plan_id, plan_version FROM run WHERE run_key = ?;

-- name: run_index
-- Keys and ids of a run, for the in-memory index.
SELECT idempotency_key, run_seq, event_id FROM event WHERE run_key = ?;

-- name: find_key
SELECT run_seq, event_id, persisted_at, payload, payload_digest FROM event
WHERE run_key = ? AND coalesce(step_id, '') = ? AND idempotency_key = ?;

-- name: find_event_id
SELECT 1 FROM event WHERE run_key = ? AND event_id = ? AND run_seq > 2048;

-- name: early_ids
SELECT event_id FROM event WHERE run_key = ? AND run_seq <= 2048;

-- name: last_run_key
SELECT coalesce(max(run_key), 0) FROM run;

-- name: insert_run
INSERT INTO run (run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
                 last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, owner, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_event
INSERT INTO event (run_key, run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id,
                   logical_attempt_id, idempotency_key, emitted_at, persisted_at, emitted_by, foreign_event_id,
                   traceparent, payload, payload_digest, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: advance_run
-- The common case: no indexed column changes.
UPDATE run SET last_seq = ?, head = ?, persisted_at = ?, summary = ? WHERE run_key = ?;

-- name: advance_runs
-- Same as `advance_run` for several runs.
UPDATE run SET last_seq = new.column1, head = new.column2, persisted_at = new.column3, summary = new.column4
FROM (VALUES (?, ?, ?, ?, ?)) AS new WHERE run.run_key = new.column5;

-- name: update_run_status
-- A run that has ended has no owner.
UPDATE run SET last_seq = ?1, head = ?2, persisted_at = ?3, summary = ?4, status = ?5, provider = ?6, workflow_id = ?7,
               provider_run_id = ?8, owner = iif(?9, NULL, owner), epoch = iif(?9, NULL, epoch),
               wake_at = iif(?9, NULL, wake_at)
WHERE run_key = ?10;

-- name: save_summary
UPDATE run SET summary = ?, status = ?, provider = ?, workflow_id = ?, provider_run_id = ?, edition = edition + 1
WHERE run_key = ? AND last_seq = ? RETURNING run_key;

-- name: erase_payload
UPDATE event SET payload_digest = ?, payload = NULL WHERE run_key = ? AND run_seq = ?;

-- name: misplaced_events
-- Events whose position is not after that of the preceding event.
SELECT run_seq FROM (SELECT run_seq, pos, lag(pos) OVER (ORDER BY run_seq) AS earlier FROM event WHERE run_key = ?)
WHERE pos <= earlier LIMIT 100;

-- name: orphaned_runs
SELECT DISTINCT run_key FROM event WHERE run_key NOT IN (SELECT run_key FROM run) ORDER BY run_key LIMIT 100;

-- name: insert_alert
INSERT INTO alert (code, severity, run_id, subject, detail, facts, raised_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (code, run_id, subject) DO NOTHING;

-- name: list_alerts
SELECT code, severity, run_id, subject, detail, facts, raised_at FROM alert
WHERE (?1 IS NULL OR run_id = ?1)
  AND (?2 IS NULL OR EXISTS (SELECT 1 FROM run WHERE run.run_id = alert.run_id AND run.tenant_id = ?2))
ORDER BY alert_key;

-- name: find_lease
SELECT owner, epoch, expires_at, host, pid, started FROM lease WHERE owner = ?;

-- name: store_lease
INSERT INTO lease (owner, epoch, expires_at, host, pid, started) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner) DO UPDATE SET epoch = excluded.epoch, expires_at = excluded.expires_at, host = excluded.host,
                                  pid = excluded.pid, started = excluded.started;

-- name: extend_lease
UPDATE lease SET expires_at = ? WHERE owner = ? AND epoch = ?;

-- name: set_run_owner
UPDATE run SET owner = ?, epoch = ?, wake_at = ? WHERE run_key = ?;

-- name: owned_runs
SELECT run_id FROM run WHERE owner = ? AND epoch = ?;

-- name: list_leases
SELECT owner, epoch, expires_at, host, pid, started FROM lease;

-- name: delete_old_leases
-- Leases that expired long ago and that no run refers to.
DELETE FROM lease WHERE expires_at < ? AND owner NOT IN (SELECT owner FROM run WHERE owner IS NOT NULL);

-- name: due_runs
SELECT run_key, run_id FROM run WHERE wake_at <= ? AND owner IS NULL ORDER BY wake_at LIMIT ?;

-- name: abandoned_runs
-- Unfinished runs of an owner in any epoch but its live one; in every epoch if it is not live (null).
SELECT run_key, run_id FROM run
WHERE owner = :owner AND (epoch <> :living OR :living IS NULL)
  AND status IN ('PENDING', 'APPROVED', 'RUNNING', 'PAUSED')
LIMIT :limit;

-- name: run_owners
SELECT DISTINCT owner FROM run WHERE owner IS NOT NULL;

-- name: end_position
SELECT coalesce(max(pos), 0) FROM event;

-- name: runs_signalled
SELECT pos, (SELECT run_id FROM run WHERE run.run_key = event.run_key) FROM event
WHERE event_type = 'SignalAccepted' AND pos > ? ORDER BY pos LIMIT 1000;

-- name: insert_plan
INSERT INTO plan (sha256, body) VALUES (?, ?) ON CONFLICT (sha256) DO NOTHING;

-- name: load_plan
SELECT body FROM plan WHERE sha256 = ?;

-- name: totals
SELECT count(*), coalesce(sum(last_seq), 0) FROM run;

-- Lookups. A search by type and entity scans the run, a search by type and time scans the log from that time on: an
-- index would cost every append 6 to 23 % (decision 20); without one, a run of 100,000 events takes 40 ms.

-- name: find_foreign_id
SELECT run_seq FROM event WHERE run_key = ? AND foreign_event_id = ?;

-- name: find_own_id
SELECT run_seq FROM event WHERE run_key = ?1 AND event_id = ?2 AND run_seq > 2048
UNION ALL SELECT run_seq FROM event WHERE run_key = ?1 AND run_seq <= 2048 AND event_id = ?2;

-- name: select_run
-- Events of these types (a JSON list), about this entity or its descendants; either may be null.
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, CAST(payload AS BLOB), payload_digest, hash
FROM event WHERE run_key = ?1 AND run_seq > ?2
  AND (?4 IS NULL OR event_type IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR step_id = ?5
       OR (substr(step_id, 1, length(?5)) = ?5 AND substr(step_id, length(?5) + 1, 1) IN ('@', '~', '[', '/')))
ORDER BY run_seq LIMIT ?3;

-- name: select_tail
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, CAST(payload AS BLOB), payload_digest, hash, pos, run_key
FROM event WHERE pos > ? AND event_type IN (SELECT value FROM json_each(?)) ORDER BY pos LIMIT ?;

-- name: time_at
SELECT persisted_at FROM event WHERE pos >= ? ORDER BY pos LIMIT 1;
