"""The command line, a thin layer over the Python API.

main.py           the click group; loads the module of a subcommand when the subcommand is run
session.py        shared options, exit codes, error output; opens the store or connects to the server
run_argument.py   resolves RUN (an id, the start of one, or @last) to a run id
commands/         the subcommands
attach.py         attaches the terminal to a run: drives it or watches it, handles Ctrl-C
detach.py         run --detach: drives a run in a background process
recover_runs.py   recover: drives all abandoned runs of a store
follower.py       reads the events of a run and passes them to an output
outputs.py        the Output protocol, JSON lines and plain lines
run_view.py       the folded state of a followed run
event_text.py     one line of text per event
run_report.py     the final report of a run
hints.py          commands to type next
signal_sender.py  sends signals through the server, or on the store
doctor_checks.py  the checks of doctor
terminal/         rendering and keyboard input

Invariants: with --json only JSON goes to stdout, and messages go to stderr; exit codes do not depend on --json; the
output of a followed run is written in threads, so that a blocked pipe or terminal does not block the engine.
"""
