-- name: insert_token
-- No row is returned if another token has the name.
INSERT INTO token (token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at, name_key,
                   created_with)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT DO NOTHING RETURNING token_id;

-- name: find_token_creators
-- Who created a token with another token, who created that one, and so on. A local user, who can access the store
-- itself, is not among them.
WITH RECURSIVE creator (name, created_with, depth) AS (
    SELECT created_by, created_with, 1 FROM token WHERE token_id = $1
    UNION ALL
    SELECT token.created_by, token.created_with, depth + 1
    FROM creator JOIN token ON token.token_id = creator.created_with WHERE depth < 1000
)
SELECT name FROM creator WHERE created_with IS NOT NULL;

-- name: find_token
SELECT token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at, revoked_at
FROM token WHERE token_id = $1;

-- name: find_invalid_tokens
-- Those of a JSON list of tokens that are revoked, or expired at a time.
SELECT token_id FROM token
WHERE token_id IN (SELECT json_array_elements_text($1::json)) AND (revoked_at IS NOT NULL OR expires_at <= $2);

-- name: list_tokens
SELECT token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at, revoked_at
FROM token WHERE {conditions} ORDER BY created_at, token_id;

-- name: revoke_token
UPDATE token SET revoked_at = $2 WHERE token_id = $1 AND revoked_at IS NULL RETURNING token_id;

-- name: token_exists
SELECT 1 FROM token LIMIT 1;

-- name: insert_audit
INSERT INTO audit (at, count, outcome, action, tenant_id, project_id, environment_id, actor_id, run_id, code,
                   engine_attempt, logical_attempt, facts)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: list_audit
SELECT audit_key, at, count, outcome, action, tenant_id, project_id, environment_id, actor_id, run_id, code,
       engine_attempt, logical_attempt, facts
FROM audit WHERE {conditions} ORDER BY audit_key DESC LIMIT {limit};

-- name: count_audit
SELECT count(*) FROM audit;

-- name: insert_request
INSERT INTO run_request (tenant_id, project_id, environment_id, plan_id, plan_version, run_request_id, run_id)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING;

-- name: find_request
SELECT run_id FROM run_request
WHERE tenant_id = $1 AND project_id = $2 AND environment_id = $3 AND plan_id = $4 AND plan_version = $5
  AND run_request_id = $6;

-- name: run_counts
SELECT status, count(*) FROM run GROUP BY status;

-- name: alert_counts
SELECT code, count(*) FROM alert GROUP BY code;

-- name: offer_task
-- A new driver of the run becomes the owner of an existing task. A held task is offered again; other states stay.
-- Without effect if another process owns the run: its row is locked, so that no process claims it meanwhile.
WITH found AS (SELECT owner FROM run WHERE run_id = $1 FOR SHARE)
INSERT INTO task (run_id, tenant_id, path, attempt, queue, owner, state)
SELECT $1, $2, $3, $4, $5, $6, 'OFFERED' WHERE NOT EXISTS (SELECT FROM found WHERE owner IS DISTINCT FROM $6)
ON CONFLICT (run_id, path, attempt) DO UPDATE
SET owner = excluded.owner, state = CASE WHEN task.state = 'HELD' THEN 'OFFERED' ELSE task.state END
RETURNING task_id, run_id, path, attempt, state, worker, lease_no, losses, outcome, renewals;

-- name: hold_tasks
UPDATE task SET state = 'HELD' WHERE run_id = $1 AND owner = $2 AND state = 'OFFERED';

-- name: claim_tasks
UPDATE task SET state = 'TAKEN', worker = $1, lease_no = lease_no + 1
WHERE task_id IN (SELECT task_id FROM task
                  WHERE state = 'OFFERED' AND queue IN (SELECT jsonb_array_elements_text($2::jsonb))
                    AND ($3::text IS NULL OR tenant_id = $3)
                  ORDER BY task_id LIMIT $4 FOR UPDATE SKIP LOCKED)
RETURNING task_id, lease_no;

-- name: task_assignments
SELECT task_id, lease_no, state, run_id, path, attempt, order_body FROM task
WHERE worker = $1 AND task_id IN (SELECT jsonb_array_elements_text($2::jsonb)::bigint);

-- name: pending_tasks
-- Tasks of a driver that were claimed or completed.
SELECT task_id, run_id, path, attempt, state, worker, lease_no, losses, outcome, renewals FROM task
WHERE owner = $1 AND state IN ('TAKEN', 'DONE') ORDER BY task_id;

-- name: started_tasks
SELECT task_id, run_id, path, attempt, state, worker, lease_no, losses, outcome, renewals FROM task
WHERE owner = $1 AND state = 'STARTED' ORDER BY task_id;

-- name: start_task
-- Idempotent: it is repeated if its result did not arrive.
UPDATE task SET state = 'STARTED', order_body = $4
WHERE task_id = $1 AND lease_no = $2 AND owner = $3 AND state IN ('TAKEN', 'STARTED') RETURNING task_id;

-- name: requeue_task
UPDATE task SET state = $4, worker = NULL, losses = losses + $5
WHERE task_id = $1 AND lease_no = $2 AND owner = $3 AND state IN ('TAKEN', 'STARTED') RETURNING task_id;

-- name: release_task
UPDATE task SET state = 'OFFERED', worker = NULL
WHERE task_id = $1 AND lease_no = $2 AND state IN ('TAKEN', 'STARTED') RETURNING task_id;

-- name: renew_task_lease
UPDATE task SET renewals = renewals + 1
WHERE task_id = $1 AND lease_no = $2 AND worker = $3 AND state = 'STARTED' RETURNING stop;

-- name: end_task
UPDATE task SET state = 'DONE', outcome = $4
WHERE task_id = $1 AND lease_no = $2 AND worker = $3 AND state = 'STARTED' RETURNING run_id;

-- name: stop_task
UPDATE task SET stop = $3 WHERE task_id = $1 AND owner = $2;

-- name: delete_task
DELETE FROM task WHERE run_id = $1 AND path = $2 AND attempt = $3 AND owner = $4;

-- name: delete_tasks
DELETE FROM task WHERE run_id = $1;

-- name: delete_reports
DELETE FROM task_report WHERE task_id IN (SELECT task_id FROM task WHERE run_id = $1);

-- name: delete_orphaned_tasks
-- Tasks of finished runs whose driver died before it could delete them.
DELETE FROM task WHERE EXISTS
    (SELECT 1 FROM run WHERE run.run_id = task.run_id AND run.status IN ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: delete_orphaned_reports
DELETE FROM task_report WHERE NOT EXISTS (SELECT 1 FROM task WHERE task.task_id = task_report.task_id);

-- name: find_task
SELECT task_id, run_id, tenant_id, path, attempt, state, worker, lease_no, order_body FROM task WHERE task_id = $1;

-- name: insert_report
INSERT INTO task_report (task_id, lease_no, body) VALUES ($1, $2, $3) RETURNING report_no;

-- name: pending_reports
SELECT r.report_no, t.run_id, t.path, t.attempt, r.body FROM task_report AS r JOIN task AS t ON t.task_id = r.task_id
WHERE t.owner = $1 AND r.answer IS NULL ORDER BY r.report_no;

-- name: answer_report
UPDATE task_report SET answer = $2 WHERE report_no = $1;

-- name: pop_report_answer
DELETE FROM task_report WHERE report_no = $1 AND answer IS NOT NULL RETURNING answer;

-- name: task_counts
SELECT state, count(*) FROM task GROUP BY state;

-- name: insert_output
INSERT INTO step_output (run_id, entity, attempt, body) VALUES ($1, $2, $3, $4);

-- name: read_output
SELECT output_key, entity, attempt, body FROM step_output
WHERE run_id = $1 AND output_key > $2 ORDER BY output_key LIMIT $3;

-- name: insert_task_artifact
INSERT INTO task_report (task_id, lease_no, body, answer) VALUES ($1, $2, $3, 'kept');

-- name: task_artifacts
SELECT body FROM task_report WHERE task_id = $1 AND answer = 'kept' ORDER BY report_no;

-- Large results of tasks.

-- name: insert_result
INSERT INTO kept_result (key, body) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING;

-- name: load_result
SELECT body FROM kept_result WHERE key = $1;

-- name: delete_result
DELETE FROM kept_result WHERE key = $1;

-- name: results_after
SELECT key FROM kept_result WHERE key > $1 AND key < $2 ORDER BY key LIMIT 1000;
