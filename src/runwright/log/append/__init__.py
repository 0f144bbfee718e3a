"""Append authority: validate, number and chain events. The only way into the log.

prepare.py     stateless validation of one event; its form for storage
queue.py       append requests on their way to the store, each with a write budget
aggregate.py   in-memory state of one run that is needed to validate its next event, and a cache of these
authority.py   validate a batch of appends against the aggregates: receipts, refusals, sequence numbers, hashes

Invariants: no I/O except by the store; the order of checks is part of the contract (see authority.py); the events of
one append are all committed or none is, unless the append is not atomic; a strict run is never folded to append.
"""
