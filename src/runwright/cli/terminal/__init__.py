"""Terminal rendering and input.

formatting.py     tables, times, durations, plurals; escapes control characters; strips ANSI sequences of step output
graph_layout.py   a plan's dependency graph as indented rows
progress_view.py  header, progress bar and one row per step, as rich text
screen.py         diff painting of lines at the bottom of the terminal
input.py          raw keyboard, and signals (Ctrl-C, Ctrl-Z) as something to await
live_view.py      the output of `run` and `watch` on a terminal; combines the modules above

Invariants: text from a log or from a step is escaped before it is printed; nothing blocks the event loop (painting
and key reading run in threads); the terminal modes are restored on exit and before the process is suspended. Only
progress_view, screen and live_view import `rich` at module level, because it makes every command start more slowly.
"""
