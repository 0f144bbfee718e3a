"""Plans written in Python with @rw.step and @rw.plan: a plan function is traced once to get its plan document.

proxies.py        symbolic values: expressions that represent values of a future run
tracing.py        the trace of a plan function, rw.when, and the base of step and plan functions
step_function.py  @rw.step: a function that becomes a step when it is called in a plan
plan_function.py  @rw.plan: a function that is traced to a plan

Invariants: no step runs while a plan is traced; a value that is known only in a run raises PlanNeedsValue when Python
needs it; other processes import step functions by `module:name`.
"""
