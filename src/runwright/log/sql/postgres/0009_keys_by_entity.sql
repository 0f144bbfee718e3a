-- Keys are hashes and would scatter over an index of their own: in a long run each event would touch another page.
-- Ordered by entity they are adjacent, because the events of one period concern few entities (decision 21).

DROP INDEX event_by_key;
CREATE UNIQUE INDEX event_by_key ON event (run_key, (coalesce(step_id, '')) COLLATE "C", idempotency_key);
