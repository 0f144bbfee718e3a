-- The run of an audited action: where it belongs, and its attempts at that time. '' and NULL: unknown, or no run.

ALTER TABLE audit ADD COLUMN project_id text NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN environment_id text NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN engine_attempt bigint;
ALTER TABLE audit ADD COLUMN logical_attempt bigint;
