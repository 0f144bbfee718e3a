-- Imported events are found by the id of their source. Our own events have none, so the index costs them nothing.

CREATE INDEX event_by_foreign_id ON event (run_key, md5(foreign_event_id)) WHERE foreign_event_id IS NOT NULL;
