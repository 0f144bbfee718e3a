"""Client of a server: the embedded app's methods over HTTP.

transport.py          HttpTransport: requests with retries and failover between servers that share a store
remote_log.py         RemoteLog: the LogReader of a server; RemoteOutput: step output of its runs
remote_operations.py  RemoteOperations: the RunOperations of a server
connect.py            `rw.connect()` and `rw.connect_async()`

Invariants: every request may be sent twice, because starts and signals carry ids drawn by the client; errors of the
server are raised with the same code and detail as by the embedded app.
"""
