"""Expressions in plans: Jinja's syntax, our own evaluation, a limit on every operation.

template.py      entry point: evaluate(), fill(), is_true(), check(), and the names that expressions mention
parser.py        finds `{{ }}` in a text; parses one expression with Jinja's parser
compiler.py      syntax tree to closures; a node type that is not listed does not exist
budget.py        cost budget of one evaluation; limits; conversion to text and JSON
lookup.py        lookup of items and fields; methods of texts, lists and mappings
operators.py     arithmetic and comparisons, with their cost
filters.py       filters, what may follow `|`             list_filters.py  filters over lists and mappings
predicates.py    tests, what may follow `is`              value_types.py   JSON types and their names

Invariants: an expression reads only its scope, which it cannot change; no Python attribute of a value is reachable;
every operation is charged before it creates data; messages quote expressions and field names, never values.
"""
