"""SQLite backend, the default: one file, one writer thread, two reader threads.

store.py        SqliteStore: the store; reads on the reader threads, everything else on the writer thread
writer.py       group commit of appends, and other calls that write
readers.py      reader threads, each with its own connection
connection.py   connections, pragmas, migrations, translation of errors

Invariants: only the writer thread writes, and it holds SQLite's write lock from before it validates until the commit;
a commit is durable (WAL, synchronous = FULL); several processes may use the file, but not over a network.
"""
