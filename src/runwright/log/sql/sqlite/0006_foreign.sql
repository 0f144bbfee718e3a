-- Events from elsewhere are told by the ids that they had there. Our own have none: to them the index costs nothing.

CREATE INDEX event_by_foreign_id ON event (run_key, foreign_event_id) WHERE foreign_event_id IS NOT NULL;
