"""The command line: thin over the Python API."""
