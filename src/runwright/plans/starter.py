"""Starter files written by `runwright init`: a runnable plan and the settings of a folder."""

from __future__ import annotations

PLAN_FILE = "hello.yaml"
SETTINGS_FILE = "runwright.toml"

_PLAN = """\
# A first plan. Check it with `runwright plan validate hello.yaml`, run it with `runwright run hello.yaml`.

plan: hello

params:
  name: world                      # override it: runwright run hello.yaml --param name=you

steps:                             # run in sequence; with `dependsOn: [...]` they become a graph
  - id: greet
    shell:
      command: echo "Hello, $NAME!"
      env: {NAME: "{{ params.name }}"}        # pass external values as variables, not as shell code
    retry: {maxAttempts: 3, initial: 1s}      # on failure, retry twice, after about 1s and 2s
    timeout: 30s

  - id: count
    python:
      args: {text: "{{ steps.greet.result.stdout }}"}
      code: |
        words = text.split()
        {"words": len(words), "letters": sum(letter.isalpha() for letter in text)}   # the last value is the result

  - id: report
    when: "{{ steps.count.result.words > 0 }}"
    shell: echo {{ steps.count.result.words | quote }} words, {{ steps.count.result.letters | quote }} letters
"""

_SETTINGS = """\
# Settings of commands run in this folder. Flags and variables such as RUNWRIGHT_STORE take precedence, in this order.

# Store of all runs. A file needs no server; use postgresql://host/database for several machines.
store = "sqlite:///.runwright/runs.db"
"""


def starter_files() -> dict[str, str]:
    """Return the contents of the starter files by file name."""
    return {PLAN_FILE: _PLAN, SETTINGS_FILE: _SETTINGS}
