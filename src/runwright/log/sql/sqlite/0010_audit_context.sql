-- The run of an audited action: where it belongs, and its attempts at that time. '' and NULL: unknown, or no run.

ALTER TABLE audit ADD COLUMN project_id TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN environment_id TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN engine_attempt INTEGER;
ALTER TABLE audit ADD COLUMN logical_attempt INTEGER;
