"""Tools: the kinds of step. A tool knows nothing of runs, logs or plans; it gets inputs and a StepContext.

base.py              Tool protocol, StepContext, Lane (where a tool runs), StepError
registry.py          built-in tools, and tools of installed packages (entry points `runwright.tools`)
noop.py, wait.py, approval.py, sub_plan.py
                     steps that run no code: completed by the engine, a timer, a decision or event, a child run
python.py, shell.py, http.py, artifact.py, sql/, dbt/
                     steps that run code
playbook/            the same kinds with the inputs and results of NoETL playbooks
child_process.py     child process with captured output, killed with its process group and with this process
connection_cache.py  objects that are expensive to open, cached per event loop
secrets.py           secret providers
secret_mask.py       masking of secrets in output, results and errors

Invariants: `check` runs before a run starts, without executing user code, and reports problems as a sentence; inputs
may still hold expressions then, so `run` checks the evaluated inputs again. A failed step raises StepError with a code.
"""
