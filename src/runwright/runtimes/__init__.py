"""Drive runs and execute their steps: the parts that every runtime shares, and the runtimes.

protocols.py        Execution, ExecutorProtocol, SubRunStarter: the interface to the code that executes steps
settings.py         EngineSettings
commands.py         commands of a session to its runtime
facts.py            facts: events outside the log (a step ended, a checkpoint was written) until they are durable
recovery.py         fold the events of a run, rebuild its decider, begin another engine attempt
services.py         RunServices: log, executor, tools, stores and timers that all runs of a process share
run_session.py      one run: apply facts, decide, append; an event keeps its id over append retries
step_runner.py      prepares and starts the steps of a run, and turns their outcomes into facts
plan_resolver.py    finds the plan of a run
secret_resolver.py  resolves secrets for inputs
value_fetcher.py    fetches values that a decision needs
result_loader.py    loads a stored result by its address
result_cleanup.py   deletes stored results whose step or run has ended
alerts.py           alerts for operators
timers.py           timers on the wall clock and the monotonic clock
background.py       background tasks of a process
mock.py             executor with scripted outcomes, for dry runs and tests

embedded/           the embedded runtime: runs are driven in this process
executor/           execution of steps on threads, event loops and isolated processes

Invariants: events are appended before their effects start; a step is started only after its start is durable; only the
process that holds the lease of a run appends to it.
"""
