"""The scheduler of playbooks.

scheduler.py     PlaybookScheduler: pipelines, loops, visits, routing, the end of the run
context.py       what its parts share
tokens.py        admission of tokens to steps          arcs.py          outgoing arcs of a step that ended
pipeline.py      tasks of a pipeline                   outcome.py       outcome of an attempt
policies.py      what follows from an outcome          event_values.py  checks of values that enter events
loops.py         loops over a pipeline                 offers.py        tasks that workers claim
failures.py      failures that end the run             scope.py         expression scope
"""
