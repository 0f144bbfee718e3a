"""Tamper evidence: the hash chain of a run's events and its verification.

chain.py    format of the chain; StoredEvent, the row type of the stores; link(), which hashes one event
verify.py   RunVerifier, which checks the events of a run as they are read; Finding

Invariants: pure; every field of an event is hashed except the payload, of which the digest is, so that a payload can be
erased later; one edit yields one finding.
"""
