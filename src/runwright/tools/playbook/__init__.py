"""Tasks of NoETL playbooks: the built-in tools with the inputs, results and error facts of the NoETL DSL.

artifact.py  kind `noetl.artifact`: stores and loads files and values
http.py      kind `noetl.http`: like the http step; statuses of 400 and above are errors
nats.py      kind `noetl.nats`: messages, key-value buckets, object stores
python.py    kind `noetl.python`: code that sets `result` or defines `main`
secrets.py   kind `noetl.secrets`: references to secrets
sql.py       kind `noetl.sql`: postgres, duckdb and sqlite

Errors carry the facts that playbook policies match on: `kind`, `http.status`, `pg.code`, `py.exception_type`.
"""
