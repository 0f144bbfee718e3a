"""Server: the engine behind an HTTP API, for many callers, tenants, processes and machines.

settings.py           table [server] of runwright.toml; size limits of requests
main.py               process entry: socket, uvicorn, HTTP protocol with header limits, signals
service.py            Service: engine, log and other objects that all requests of a process share; waiting workers
app.py                Litestar application: routes, dependency injection, exception handlers
middleware.py         per request: id, authentication, rate and size limits, problem responses, metrics, access log
request_context.py    RequestContext: actor, authorization and audit of one request
responses.py          JSON responses, ETags, validation of request values
problems.py           errors as RFC 9457 problem documents
schemas.py            request and response documents
openapi.py            /openapi.json: generated schema, examples, and routes outside of the framework
event_broadcaster.py  one reader of the log for all event streams
stream_authorization.py  ends streams whose token was revoked or has expired
append_batcher.py     batches events that callers post one at a time
rate_limit.py         token buckets
metrics.py            Prometheus metrics
routes/               HTTP handlers, one module per resource

Invariants: every request passes the middleware, which authenticates it before any route runs; every handler authorizes
before it reads or writes; every error is sent as a problem document with a code of the contract; servers on one store
share no other state, so any of them can serve any request.
"""
