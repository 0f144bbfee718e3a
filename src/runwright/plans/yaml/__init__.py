"""YAML 1.2 and JSON documents as plain data, with the positions of problems.

scalars.py    core schema of YAML 1.2: meaning of plain and tagged scalars, parser events
reader.py     one YAML document to plain data
positions.py  line and column of a document path
document.py   bytes to data (YAML or JSON); problems with their positions

Invariants: nothing in a document is executed; depth, size and the expansion of aliases are bounded; positions count
from 1 and are computed only for documents that have problems.
"""
