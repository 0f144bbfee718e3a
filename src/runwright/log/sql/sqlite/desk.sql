-- name: put_token
INSERT INTO token (token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- name: find_token
SELECT token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at, revoked_at
FROM token WHERE token_id = ?1;

-- name: list_tokens
SELECT token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at, revoked_at
FROM token WHERE {conditions} ORDER BY created_at, token_id;

-- name: revoke_token
UPDATE token SET revoked_at = ?2 WHERE token_id = ?1 AND revoked_at IS NULL RETURNING token_id;

-- name: any_token
SELECT 1 FROM token LIMIT 1;

-- name: put_audit
INSERT INTO audit (at, count, outcome, action, tenant_id, actor_id, run_id, code, facts)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- name: list_audit
SELECT audit_key, at, count, outcome, action, tenant_id, actor_id, run_id, code, facts
FROM audit WHERE {conditions} ORDER BY audit_key DESC LIMIT {limit};

-- name: count_audit
SELECT count(*) FROM audit;

-- name: put_request
INSERT INTO run_request (tenant_id, project_id, environment_id, plan_id, plan_version, run_request_id, run_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING;

-- name: find_request
SELECT run_id FROM run_request
WHERE tenant_id = ?1 AND project_id = ?2 AND environment_id = ?3 AND plan_id = ?4 AND plan_version = ?5
  AND run_request_id = ?6;

-- name: census_runs
SELECT status, count(*) FROM run GROUP BY status;

-- name: census_alerts
SELECT code, count(*) FROM alert GROUP BY code;
