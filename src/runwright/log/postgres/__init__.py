"""Postgres backend: for many processes, on one or several machines.

store.py         PostgresStore: the store; reads through a pool, appends through the writers
writer.py        ShardWriter: group commit of the appends of its shards over one connection
connection.py    connections, migrations, translation of errors
server_clock.py  the time of the database server

Invariants: a batch is committed by one statement that skips runs changed by another process since they were validated;
nothing is locked during validation; within a shard, positions become visible in order; persistedAt follows the clock
of the server.
"""
