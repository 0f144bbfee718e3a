"""Configuration: build objects from runwright.toml.

settings.py        reads the file and its tables; configures logging of long-lived processes
artifact_store.py  [artifacts]: the store for artifacts
result_stores.py   [results]: the stores for large results of tasks

Invariants: the file is read from the working directory; an unknown or invalid setting is an INVALID_ARGUMENT error.
"""
