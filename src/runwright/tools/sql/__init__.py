"""The sql step: SQLite, DuckDB and Postgres.

tool.py       inputs and checks of the step, result as JSON
databases.py  one class per database; each runs the SQL of a step in one transaction
text.py       tokenizer: named parameters to positional ones, splitting into statements

Invariants: values are bound, never pasted into SQL text; a step is one transaction, rolled back if its result is
refused.
"""
