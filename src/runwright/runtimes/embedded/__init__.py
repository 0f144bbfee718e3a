"""The embedded runtime: an engine that drives runs in this process and dispatches steps to workers.

engine.py         Engine: owns the drivers of all runs, the lease and the background loops
run_driver.py     RunDriver: the loop around the session of one run
capacity.py       free slots of the executor, shared by the runs
lease_keeper.py   acquires and renews the lease of the process; lease_thread.py renews it from a thread
supervisor.py     polls for signals of other processes and for abandoned runs
task_queue.py     the table of steps that are offered to workers, with their leases
dispatcher.py     offers steps to workers, and offers them again when a worker is lost (worker_liveness.py)
worker_offers.py  the offered and remotely executing attempts of one run

Invariants: only the owner of the lease drives a run; a worker receives its assignment only after the start of the step
is in the log; each claim raises the number of the task's lease, and only its current holder is heard.
"""
