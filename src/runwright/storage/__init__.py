"""Data that is too large for the event log: values, results, artifacts and step output. The log holds references.

json_encoding.py    strict JSON encoding of results; size and depth limits
file_store.py       FileStore: content-addressed values in files; atomic durable file writes
private_files.py    files and folders that only their owner can read
values.py           ValueStore: the engine's access to values (by content) and results (in tiers)
result_stores.py    Tiers: results of playbook tasks in named stores; expiry; folder and memory tiers
result_store_backends.py  S3, NATS and Postgres tiers
nats_connection.py  NATS connect helper
artifacts.py        ArtifactStore: files produced by steps; folder backend
s3.py               S3 backend of artifacts, S3 error translation
output/             step output (stdout and stderr)

Invariants: a reference is recorded only after its bytes are durable; content is verified against its SHA-256 when it is
read; values, results and artifacts are scoped to a tenant or a run, so an address alone grants no access to those of
another.
"""
