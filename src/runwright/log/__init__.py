"""The log: one protocol, three stores, the only truth."""
