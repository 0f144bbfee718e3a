"""The benchmark: `python -m bench`. Every figure is a ratio to a reference measured in the same run.

targets.py       the rows of the table, with floor and aim     table.py    measurements, and the table of results
scale.py         sizes and rounds, full or quick               machine.py  facts about the machine
stopwatch.py     timing                                        samples.py  events as an engine sends them
child_process.py a measurement in its own process              pgserver.py a temporary Postgres server

sqlite.py, postgres.py   appends against raw inserts (callers.py against raw.py)
replay.py                replay against a bare loop and pyeventsourcing (eventsourcing_peer.py)
growth.py                appends to a growing log and a growing run (fill.py fills them)
engine.py                runs of ten steps (ten_steps.py, steps.py) against DBOS (dbos_peer.py)
run_size.py              cost of a step in large runs          waiting_runs.py  memory and wake-up of waiting runs
playbooks.py             loops, routing, pipelines             plans.py         Python and dbt plans
server.py                the HTTP API (server_process.py)      startup.py       import and --help
"""
