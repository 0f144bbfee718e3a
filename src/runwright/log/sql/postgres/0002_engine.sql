-- For drivers: an index to find new signals without reading every event, and the plans.

CREATE INDEX event_signals ON event (shard, pos) WHERE event_type = 'SignalAccepted';

-- Plans by content hash. The log contains only references to them.
CREATE TABLE plan (
    sha256 text PRIMARY KEY,
    body   bytea NOT NULL
);
