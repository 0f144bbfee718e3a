"""What `runwright init` writes: a plan that runs as it is, and the settings of a folder."""

from __future__ import annotations

PLAN_FILE = "hello.yaml"
SETTINGS_FILE = "runwright.toml"

_PLAN = """\
# A first plan. Look it over with `runwright plan validate hello.yaml`, run it with `runwright run hello.yaml`.

plan: hello

params:
  name: world                      # another one: runwright run hello.yaml --param name=you

steps:                             # one after another; give steps `dependsOn: [...]` and they become a graph
  - id: greet
    shell:
      command: echo "Hello, $NAME!"
      env: {NAME: "{{ params.name }}"}        # what comes from outside goes in as a variable, not as shell code
    retry: {maxAttempts: 3, initial: 1s}      # should it fail: twice more, after about 1s and 2s
    timeout: 30s

  - id: count
    python:
      args: {text: "{{ steps.greet.result.stdout }}"}
      code: |
        words = text.split()
        {"words": len(words), "letters": sum(letter.isalpha() for letter in text)}   # the last value is the result

  - id: report
    when: "{{ steps.count.result.words > 0 }}"
    shell: echo "That was {{ steps.count.result.words }} words and {{ steps.count.result.letters }} letters."
"""

_SETTINGS = """\
# Settings for commands that are run in this folder. Flags come first, then variables such as RUNWRIGHT_STORE.

# Where runs are kept. A file needs no server; postgresql://host/database is for many machines.
store = "sqlite:///.runwright/runs.db"
"""


def starter_files() -> dict[str, str]:
    """The files by name."""
    return {PLAN_FILE: _PLAN, SETTINGS_FILE: _SETTINGS}
