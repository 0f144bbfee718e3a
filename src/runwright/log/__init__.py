"""The log: one append-only history per run, in memory, SQLite or Postgres. The only source of truth.

model.py, protocols.py    data types; LogReader, the part of the log that RemoteLog implements as well
run_log.py                RunLog: append, read, tail and search events; list and find runs
leases.py                 LeaseService: process leases and ownership of runs
append/                   append authority: validates, numbers and chains events
store.py                  Store: the abstract base of the backends
memory.py, sqlite/, postgres/   the backends; all pass tests/conformance
sql_files.py, sql/        named queries and numbered migrations, one folder per dialect
row_mapping.py            rows to data types; detection of corrupt values
lease_liveness.py         which owners are alive; errors of ownership
process_identity.py       the process behind a lease: whether it has died
side_tables.py            tables that hold no events: tokens, audit, start requests, tasks, output
maintenance.py, replay.py   verify, rebuild and redact; folding of stored events
anchor.py                 signed statements of all run heads
notifier.py               wake-up of readers that wait; calls from other threads onto an event loop
factory.py, builders.py   open_log(url); new_event and new_run
export_import.py, noetl_importer.py   import and export as JSON lines
system_clock.py, validation.py   real clock and ids; checks of arguments

Invariants: events are never changed or removed, except that a payload may be erased (its digest stays); runSeq has no
gaps and persistedAt never decreases within a run; each event's hash covers its predecessor; a run's row is the fold of
its events, updated in the transaction that appends them; only the owner of a run changes its state while its lease is
live.
"""
