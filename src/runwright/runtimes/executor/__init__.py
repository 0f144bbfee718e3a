"""Execute steps in the local process: on threads, event loops and isolated processes.

work.py               Work and Outcome; calls a tool and maps its value or exception to an Outcome
output_capture.py     routes stdout, stderr and logging to the log of the running step
thread_pool.py        threads for plain functions
event_loops.py        event loops in threads for coroutines, with a watchdog that replaces blocked loops
isolated_messages.py  messages between the parent and an isolated process
isolated_main.py      child side of an isolated step; it is cheap to import (no asyncio)
isolated_process.py   parent side of an isolated step: starts the process, serves its requests, reads its outcome
executor.py           Executor: chooses where each step runs, tracks free slots, cancels and abandons

Invariants: a driver is notified of the end of an execution exactly once (completed, failed, cancelled or abandoned),
and never after `Executor.close`; a step cannot block the driver's loop; the output of a step is complete before its
outcome is delivered.
"""
