"""The server: the engine behind one HTTP API, for many people, tenants, processes and machines."""
