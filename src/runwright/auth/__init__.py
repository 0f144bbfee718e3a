"""Authentication, authorization and audit.

roles.py   roles, scopes and actors; which actions they permit
tokens.py  API tokens: created, verified against stored digests, revoked
audit.py   audit trail of granted and denied actions

Invariants: an action that changes something is audited durably before it is done; an actor bound to a tenant cannot
find out that anything of another tenant exists; a token is shown once and stored only as a digest.
"""
