-- Keys are hashes, and lie all over an index of their own: in a long run each event would touch another page of it.
-- Beside their entity they lie together, for what happens at a time is about few entities (decision 21).

DROP INDEX event_by_key;
CREATE UNIQUE INDEX event_by_key ON event (run_key, (coalesce(step_id, '')) COLLATE "C", idempotency_key);
