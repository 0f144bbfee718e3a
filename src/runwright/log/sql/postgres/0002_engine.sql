-- What a driver of runs needs: to see signals come in without reading all that is appended, and the plans.

CREATE INDEX event_signals ON event (shard, pos) WHERE event_type = 'SignalAccepted';

-- Plans by their content; apart from the log, which holds only references to them.
CREATE TABLE plan (
    sha256 text PRIMARY KEY,
    body   bytea NOT NULL
);
