"""Worker: executes steps for servers, in a process of its own.

job.py     WorkerJob: one claimed step: its inputs and secrets, its context, its output and its outcome
worker.py  Worker: claims steps, executes them, sends heartbeats and output, releases them on shutdown

Invariants: a step is executed only while its lease is held; the outcome of a step whose lease was lost is not reported;
secrets are resolved here and masked before anything is sent.
"""
