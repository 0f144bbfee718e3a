-- What a driver of runs needs: to see signals come in without reading all that is appended, and the plans.

CREATE INDEX event_signals ON event (pos) WHERE event_type = 'SignalAccepted';

-- Plans by their content; apart from the log, which holds only references to them.
CREATE TABLE plan (
    sha256 TEXT PRIMARY KEY,
    body   BLOB NOT NULL
) WITHOUT ROWID;
