-- Leases of workers are counted renewals, not times: their driver measures how long one was not renewed, by its own
-- monotonic clock. The clocks of servers and workers need not agree, and may be set.

ALTER TABLE task RENAME COLUMN lease_until TO renewals;
