-- For drivers: an index to find new signals without reading every event, and the plans.

CREATE INDEX event_signals ON event (pos) WHERE event_type = 'SignalAccepted';

-- Plans by content hash. The log contains only references to them.
CREATE TABLE plan (
    sha256 TEXT PRIMARY KEY,
    body   BLOB NOT NULL
) WITHOUT ROWID;
