-- name: configure_writer
-- Statements of a writer are planned once per connection: planning an append takes longer than executing it. Tables
-- may be empty at that time and large later, so plans always use indexes.
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET jit = off;

-- name: append
-- Appends a whole batch in one statement. It locks the shards' rows in order and reserves positions; updates the
-- runs that are unchanged since they were validated (same last event, same owner) and creates new ones; inserts only
-- the events of these. A run that has ended has no owner. Returns the runs that were committed; the caller reads and
-- validates the others again. Numbers are passed as comma-separated text, fixed-length bytes concatenated, and columns
-- that are null throughout as null, because encoding arrays dominates the client's time.
WITH tick AS (
    UPDATE shard SET pos = shard.pos + taken.count
    FROM (SELECT shard.shard, wanted.count
          FROM unnest($1::smallint[], $2::integer[]) AS wanted (shard, count)
          JOIN shard ON shard.shard = wanted.shard
          ORDER BY shard.shard FOR UPDATE OF shard) AS taken
    WHERE shard.shard = taken.shard
    RETURNING shard.shard, shard.pos - taken.count AS base
),
known AS (
    SELECT known.*, substring($11::bytea FROM (32 * i - 31)::integer FOR 32) AS head
    FROM unnest(string_to_array($3, ',')::integer[], string_to_array($4, ',')::smallint[],
                string_to_array($5, ',')::bigint[], string_to_array($6, ',')::bigint[],
                string_to_array($7, ',', '')::bigint[], string_to_array($8, ',')::bigint[],
                string_to_array($9, ',')::bigint[], string_to_array($10, ',')::bigint[],
                $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[])
        WITH ORDINALITY
        AS known (n, shard, run_key, was_seq, epoch, edition, last_seq, persisted_at,
                  owner, status, summary, provider, workflow_id, provider_run_id, i)
),
won AS (
    UPDATE run
    SET last_seq = known.last_seq, head = known.head, persisted_at = known.persisted_at, status = known.status,
        summary = known.summary, provider = known.provider, workflow_id = known.workflow_id,
        provider_run_id = known.provider_run_id,
        owner = CASE WHEN known.status IN ('COMPLETED', 'FAILED', 'CANCELLED') THEN NULL ELSE run.owner END,
        epoch = CASE WHEN known.status IN ('COMPLETED', 'FAILED', 'CANCELLED') THEN NULL ELSE run.epoch END,
        wake_at = CASE WHEN known.status IN ('COMPLETED', 'FAILED', 'CANCELLED') THEN NULL ELSE run.wake_at END
    FROM known JOIN tick ON tick.shard = known.shard
    WHERE run.run_key = known.run_key AND run.last_seq = known.was_seq AND run.edition = known.edition
      AND run.owner IS NOT DISTINCT FROM known.owner AND run.epoch IS NOT DISTINCT FROM known.epoch
    RETURNING known.n, run.run_key, tick.shard, tick.base
),
fresh AS (
    SELECT fresh.*, tick.base
    FROM unnest($18::integer[], $19::text[], $20::smallint[], $21::text[], $22::text[], $23::text[], $24::text[],
                $25::text[], $26::text[], $27::bigint[], $28::bigint[], $29::bytea[], $30::bigint[], $31::text[],
                $32::text[], $33::text[], $34::text[], $35::text[], $36::text[], $37::bigint[])
        AS fresh (n, run_id, shard, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement,
                  created_at, last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id,
                  owner, epoch)
    JOIN tick ON tick.shard = fresh.shard
),
made AS (
    INSERT INTO run (run_id, shard, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement,
                     created_at, last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id,
                     owner, epoch)
    SELECT run_id, shard, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement,
           created_at, last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id,
           owner, epoch
    FROM fresh
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id, run_key
),
landed AS (
    SELECT n, run_key, shard, base FROM won
    UNION ALL
    SELECT fresh.n, made.run_key, fresh.shard, fresh.base FROM made JOIN fresh ON fresh.run_id = made.run_id
),
written AS (
    INSERT INTO event (run_key, run_seq, shard, pos, event_id, event_type, schema_version, step_id, engine_attempt_id,
                       logical_attempt_id, idempotency_key, emitted_at, persisted_at, emitted_by, foreign_event_id,
                       traceparent, payload, hash)
    SELECT landed.run_key, e.run_seq, landed.shard, landed.base + e.place,
           substring($45::bytea FROM (16 * e.i - 15)::integer FOR 16), e.event_type, e.schema_version, e.step_id,
           e.engine_attempt_id, e.logical_attempt_id, substring($46::bytea FROM (32 * e.i - 31)::integer FOR 32),
           e.emitted_at, e.persisted_at, e.emitted_by, e.foreign_event_id, e.traceparent, e.payload,
           substring($47::bytea FROM (32 * e.i - 31)::integer FOR 32)
    FROM unnest(string_to_array($38, ',')::integer[], string_to_array($39, ',')::integer[],
                string_to_array($40, ',')::bigint[], string_to_array($41, ',')::integer[],
                string_to_array($42, ',')::integer[], string_to_array($43, ',')::integer[],
                string_to_array($44, ',')::bigint[], $48::text[], $49::text[], $50::text[], $51::text[], $52::text[],
                $53::text[], $54::bytea[])
        WITH ORDINALITY
        AS e (n, place, run_seq, schema_version, engine_attempt_id, logical_attempt_id, persisted_at, event_type,
              step_id, emitted_at, emitted_by, foreign_event_id, traceparent, payload, i)
    JOIN landed ON landed.n = e.n
)
SELECT n, run_key FROM landed;

-- name: append_step
-- Same as `append` for two events of one existing run whose status does not change: the end of a step and the start
-- of the next, the most frequent append of a sequential run. Returns the run, or no row if the run has changed.
WITH tick AS (
    UPDATE shard SET pos = pos + 2 WHERE shard = $1::smallint RETURNING shard, pos - 2 AS base
),
won AS (
    UPDATE run SET last_seq = $7, head = $8, persisted_at = $9, summary = $10
    FROM tick
    WHERE run.run_key = $2 AND run.last_seq = $3 AND run.edition = $4
      AND run.owner IS NOT DISTINCT FROM $5 AND run.epoch IS NOT DISTINCT FROM $6
    RETURNING run.run_key, tick.shard, tick.base
)
INSERT INTO event (run_key, shard, pos, run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id,
                   logical_attempt_id, idempotency_key, emitted_at, persisted_at, emitted_by, foreign_event_id,
                   traceparent, payload, payload_digest, hash)
SELECT won.run_key, won.shard, won.base + e.place, e.run_seq, e.event_id, e.event_type, e.schema_version, e.step_id,
       e.engine_attempt_id, e.logical_attempt_id, e.idempotency_key, e.emitted_at, e.persisted_at, e.emitted_by,
       e.foreign_event_id, e.traceparent, e.payload, e.payload_digest, e.hash
FROM won, (VALUES
    (1, $11::bigint, $12::bytea, $13::text, $14::integer, $15::text, $16::integer, $17::integer, $18::bytea, $19::text,
     $20::bigint, $21::text, $22::text, $23::text, $24::bytea, $25::bytea, $26::bytea),
    (2, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42)
) AS e (place, run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id,
        idempotency_key, emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, payload, payload_digest,
        hash)
RETURNING run_key;

-- name: find_runs
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run WHERE run_id = ANY ($1::text[]);

-- name: run_ids
SELECT run_key, run_id FROM run WHERE run_key < $1 ORDER BY run_key DESC LIMIT $2;

-- name: find_runs_by_prefix
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run
WHERE run_id >= $1 AND run_id < $1 || chr(1114111) AND starts_with(run_id, $1)
  AND ($3::text IS NULL OR tenant_id = $3)
ORDER BY run_id LIMIT $2;

-- name: find_engine_runs
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run
WHERE md5(workflow_id) = md5($2) AND md5(provider_run_id) = md5($3)
  AND provider = $1 AND workflow_id = $2 AND provider_run_id = $3
  AND ($4::text IS NULL OR tenant_id = $4)
ORDER BY run_key DESC LIMIT $5;

-- name: list_runs
-- Newest first. The caller fills in conditions from a fixed set; each has its own index.
SELECT run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, created_at,
       last_seq, head, persisted_at, status, summary, provider, workflow_id, provider_run_id, edition, owner, epoch,
       wake_at
FROM run WHERE {conditions} ORDER BY run_key DESC LIMIT {limit};

-- name: read_run
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, payload, payload_digest, hash
FROM event WHERE run_key = $1 AND run_seq > $2 ORDER BY run_seq LIMIT $3;

-- name: read_run_page
-- Up to $3 events; the page ends with the event whose payload reaches the size $4.
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, payload, payload_digest, hash
FROM event
WHERE run_key = $1 AND run_seq > $2
  AND run_seq <= (SELECT max(run_seq)
                  FROM (SELECT run_seq, coalesce(sum(octet_length(payload)) OVER before, 0) AS size
                        FROM event WHERE run_key = $1 AND run_seq > $2
                        WINDOW before AS (ORDER BY run_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                        ORDER BY run_seq LIMIT $3) AS sized
                  WHERE size < $4)
ORDER BY run_seq;

-- name: read_tail
-- Up to $3 events of each shard, in order within the shard; each part ends with the event that reaches the size $4.
SELECT e.run_seq, e.event_id, e.event_type, e.schema_version, e.step_id, e.engine_attempt_id, e.logical_attempt_id,
       e.idempotency_key, e.emitted_at, e.persisted_at, e.emitted_by, e.foreign_event_id, e.traceparent, e.payload,
       e.payload_digest, e.hash, e.shard, e.pos,
       run.run_id, run.tenant_id, run.project_id, run.environment_id, run.plan_id, run.plan_version
FROM unnest($1::smallint[], $2::bigint[]) AS seen (shard, pos)
CROSS JOIN LATERAL (
    SELECT * FROM event
    WHERE event.shard = seen.shard AND event.pos > seen.pos
      AND event.pos <= (SELECT max(pos)
                        FROM (SELECT pos, coalesce(sum(octet_length(payload)) OVER before, 0) AS size
                              FROM event AS next WHERE next.shard = seen.shard AND next.pos > seen.pos
                              WINDOW before AS (ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                              ORDER BY pos LIMIT $3) AS sized
                        WHERE size < $4)
    ORDER BY event.pos) AS e
LEFT JOIN run ON run.run_key = e.run_key
ORDER BY e.shard, e.pos;

-- name: run_index
-- Keys and ids of several runs, for the in-memory index.
SELECT run_key, idempotency_key, run_seq, event_id FROM event WHERE run_key = ANY ($1::bigint[]);

-- name: early_ids
SELECT run_key, event_id FROM event WHERE run_key = ANY ($1::bigint[]) AND run_seq <= 2048;

-- name: find_keys
SELECT e.run_key, e.idempotency_key, e.run_seq, e.event_id, e.persisted_at, e.payload, e.payload_digest
FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS q (run_key, entity, key)
JOIN event AS e ON e.run_key = q.run_key AND coalesce(e.step_id, '') COLLATE "C" = q.entity AND e.idempotency_key = q.key;

-- name: find_event_ids
SELECT e.run_key, e.event_id
FROM unnest($1::bigint[], $2::bytea[]) AS q (run_key, event_id)
JOIN event AS e ON e.run_key = q.run_key AND e.event_id = q.event_id AND e.run_seq > 2048;

-- name: save_summary
UPDATE run SET summary = $1, status = $2, provider = $3, workflow_id = $4, provider_run_id = $5, edition = edition + 1
WHERE run_key = $6 AND last_seq = $7 RETURNING run_key;

-- name: lock_run
SELECT last_seq FROM run WHERE run_key = $1 FOR UPDATE;

-- name: erase_payload
UPDATE event SET payload_digest = $1, payload = NULL WHERE run_key = $2 AND run_seq = $3;

-- name: misplaced_events
-- Events whose position is not after that of the preceding event, or that are in another shard.
SELECT run_seq
FROM (SELECT run_seq, pos, shard, lag(pos) OVER (ORDER BY run_seq) AS earlier FROM event WHERE run_key = $1) AS e
WHERE pos <= earlier OR shard <> (SELECT run.shard FROM run WHERE run.run_key = $1) LIMIT 100;

-- name: orphaned_runs
SELECT DISTINCT run_key FROM event WHERE NOT EXISTS (SELECT FROM run WHERE run.run_key = event.run_key) LIMIT 100;

-- name: insert_alert
INSERT INTO alert (code, severity, run_id, subject, detail, facts, raised_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (code, run_id, subject) DO NOTHING;

-- name: list_alerts
SELECT code, severity, run_id, subject, detail, facts, raised_at FROM alert
WHERE ($1::text IS NULL OR run_id = $1)
  AND ($2::text IS NULL OR EXISTS (SELECT 1 FROM run WHERE run.run_id = alert.run_id AND run.tenant_id = $2))
ORDER BY alert_key;

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: find_leases
SELECT owner, epoch, expires_at, host, pid, started FROM lease WHERE owner = ANY ($1::text[]);

-- name: store_lease
INSERT INTO lease (owner, epoch, expires_at, host, pid, started)
VALUES ($1, 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2, $3, $4, $5)
ON CONFLICT (owner) DO UPDATE SET epoch = lease.epoch + 1, expires_at = excluded.expires_at, host = excluded.host,
                                  pid = excluded.pid, started = excluded.started
RETURNING epoch, expires_at;

-- name: extend_lease
-- Also an expired lease: runs that were claimed meanwhile have another owner. A lease that was released (0) stays so.
UPDATE lease SET expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $3
WHERE owner = $1 AND epoch = $2 AND expires_at <> 0
RETURNING expires_at;

-- name: owned_runs
SELECT run_id FROM run WHERE owner = $1 AND epoch = $2;

-- name: end_lease
UPDATE lease SET expires_at = 0 WHERE owner = $1 AND epoch = $2;

-- name: release_run
UPDATE run SET owner = NULL, epoch = NULL, wake_at = $2
WHERE run_id = $1 AND owner = $3 AND epoch = $4
RETURNING run_key;

-- name: claim_run
-- Claim a run ($3) if its owner is still the expected one ($4, $5), the lease of that owner still ends at $6, when it
-- was found expired (NULL: it has none), and the lease of the claimer ($1, $2) is valid. The rows of both leases are
-- locked: an owner that extends its lease after this sees the claim.
WITH claimer AS (
    SELECT owner FROM lease
    WHERE owner = $1 AND epoch = $2 AND expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FOR SHARE
), expired AS (
    SELECT owner FROM lease WHERE owner = $4 AND epoch = $5 AND expires_at = $6 FOR SHARE
)
UPDATE run SET owner = $1, epoch = $2, wake_at = NULL
WHERE run_id = $3 AND owner IS NOT DISTINCT FROM $4::text AND epoch IS NOT DISTINCT FROM $5::bigint
  AND EXISTS (SELECT FROM claimer) AND ($6::bigint IS NULL OR EXISTS (SELECT FROM expired))
RETURNING run_key;

-- name: list_leases
SELECT owner, epoch, expires_at, host, pid, started FROM lease;

-- name: delete_old_leases
-- Leases that expired long ago and that no run refers to.
DELETE FROM lease WHERE expires_at < $1 AND owner NOT IN (SELECT owner FROM run WHERE owner IS NOT NULL);

-- name: due_runs
SELECT run_id, owner, epoch FROM run
WHERE wake_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AND owner IS NULL
ORDER BY wake_at LIMIT $1;

-- name: abandoned_runs
-- Unfinished runs of an owner in any epoch but its live one; in every epoch if it is not live (null).
SELECT run_id, owner, epoch FROM run
WHERE owner = $1 AND (epoch <> $2 OR $2 IS NULL) AND status IN ('PENDING', 'APPROVED', 'RUNNING', 'PAUSED')
LIMIT $3;

-- name: run_owners
SELECT DISTINCT owner FROM run WHERE owner IS NOT NULL;

-- name: end_positions
SELECT pos FROM shard ORDER BY shard;

-- name: runs_signalled
SELECT event.shard, event.pos, run.run_id
FROM unnest($1::smallint[], $2::bigint[]) AS seen (shard, pos)
JOIN event ON event.shard = seen.shard AND event.pos > seen.pos AND event.event_type = 'SignalAccepted'
JOIN run ON run.run_key = event.run_key
ORDER BY event.shard, event.pos;

-- name: find_seq
SELECT run_seq FROM event WHERE run_key = $1 AND coalesce(step_id, '') COLLATE "C" = $2 AND idempotency_key = $3;

-- name: insert_plan
INSERT INTO plan (sha256, body) VALUES ($1, $2) ON CONFLICT (sha256) DO NOTHING;

-- name: load_plan
SELECT body FROM plan WHERE sha256 = $1;

-- name: insert_value
INSERT INTO value (sha256, body) VALUES ($1, $2) ON CONFLICT (sha256) DO UPDATE SET body = excluded.body
WHERE value.body IS DISTINCT FROM excluded.body;

-- name: load_value
SELECT body FROM value WHERE sha256 = $1;

-- name: totals
SELECT count(*), coalesce(sum(last_seq), 0)::bigint, current_setting('server_version') FROM run;


-- Lookups. A search by type and entity scans the run, a search by type and time scans the log from that time on: an
-- index would cost every append 6 to 23 % (decision 20); without one, a run of 100,000 events takes 40 ms.

-- name: find_foreign_id
SELECT run_seq FROM event WHERE run_key = $1 AND md5(foreign_event_id) = md5($2) AND foreign_event_id = $2;

-- name: find_own_id
SELECT run_seq FROM event WHERE run_key = $1 AND event_id = $2 AND run_seq > 2048
UNION ALL SELECT run_seq FROM event WHERE run_key = $1 AND run_seq <= 2048 AND event_id = $2;

-- name: select_run
-- Events of these types, about this entity or its descendants; either may be null. The page ends with the event whose
-- payload reaches the size $6.
SELECT run_seq, event_id, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, idempotency_key,
       emitted_at, persisted_at, emitted_by, foreign_event_id, traceparent, payload, payload_digest, hash
FROM event
WHERE run_key = $1 AND run_seq IN (
    SELECT run_seq
    FROM (SELECT run_seq, coalesce(sum(octet_length(payload)) OVER before, 0) AS size
          FROM event
          WHERE run_key = $1 AND run_seq > $2
            AND ($4::text[] IS NULL OR event_type = ANY($4))
            AND ($5::text IS NULL OR step_id = $5
                 OR (starts_with(step_id, $5) AND substr(step_id, length($5) + 1, 1) IN ('@', '~', '[', '/')))
          WINDOW before AS (ORDER BY run_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
          ORDER BY run_seq LIMIT $3) AS sized
    WHERE size < $6)
ORDER BY run_seq;

-- name: select_tail
SELECT e.run_seq, e.event_id, e.event_type, e.schema_version, e.step_id, e.engine_attempt_id, e.logical_attempt_id,
       e.idempotency_key, e.emitted_at, e.persisted_at, e.emitted_by, e.foreign_event_id, e.traceparent, e.payload,
       e.payload_digest, e.hash, e.shard, e.pos,
       run.run_id, run.tenant_id, run.project_id, run.environment_id, run.plan_id, run.plan_version
FROM unnest($1::smallint[], $2::bigint[]) AS seen (shard, pos)
CROSS JOIN LATERAL (
    SELECT * FROM event
    WHERE event.shard = seen.shard AND event.pos > seen.pos AND event.event_type = ANY($5)
      AND event.pos <= (SELECT max(pos)
                        FROM (SELECT pos, coalesce(sum(octet_length(payload)) OVER before, 0) AS size
                              FROM event AS next
                              WHERE next.shard = seen.shard AND next.pos > seen.pos AND next.event_type = ANY($5)
                              WINDOW before AS (ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                              ORDER BY pos LIMIT $3) AS sized
                        WHERE size < $4)
    ORDER BY event.pos) AS e
LEFT JOIN run ON run.run_key = e.run_key
ORDER BY e.shard, e.pos;

-- name: times_at
-- For each shard, the time of the first event at or after a position.
SELECT (SELECT persisted_at FROM event WHERE event.shard = seen.shard AND event.pos >= seen.pos
        ORDER BY event.pos LIMIT 1)
FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY AS seen (shard, pos, place) ORDER BY place;
