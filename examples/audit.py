"""A guided look at the log: append a recorded run, show it, scrub it, verify it, then tamper with it.

Run it with `.venv/bin/python examples/audit.py`. Everything it makes is in .runwright/audit.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import apsw

HERE = Path(__file__).parent  # given as it was called, so that the commands printed can be copied
FOLDER = Path(".runwright/audit")
STORE, COPY = FOLDER / "runs.db", FOLDER / "tampered.db"
RUNWRIGHT = ".venv/bin/runwright"


def say(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def run(*arguments: str, store: Path = STORE, expect: int = 0) -> None:
    print(f"$ runwright {' '.join(arguments)} --store sqlite:///{store}", flush=True)
    done = subprocess.run(
        [Path(sys.executable).with_name("runwright"), *arguments, "--store", f"sqlite:///{store}"], check=False
    )
    if done.returncode != expect:
        sys.exit(f"expected exit code {expect}, got {done.returncode}")


def change_one_byte(path: Path) -> None:
    """What someone with access to the file might do: 18,204 rows become 19,204."""
    content = path.read_bytes()
    before, after = b'"rows":18204', b'"rows":19204'
    place = content.find(before)
    while place >= 0:  # the file may hold the text twice, once in space no longer used
        path.write_bytes(content[:place] + after + content[place + len(before) :])
        connection = apsw.Connection(str(path))
        changed = connection.execute("SELECT 1 FROM event WHERE instr(payload, ?)", (after,)).fetchall()
        connection.close()
        if changed:
            return
        place = content.find(before, place + 1)
    sys.exit("the recorded run is not the expected one")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    say("A recorded run goes in: six steps, a retry, two pauses, and a duplicate that came late.")
    run("append", str(HERE / "recorded-run.jsonl"))
    say("Its state is a fold of its events.")
    run("show", "@last")
    say("Any moment of it can be looked at again. At event 11 somebody had just paused it:")
    run("show", "@last", "--at", "11")
    say("Its history, in order:")
    run("events", "@last")
    say("Nothing was edited since it was acknowledged:")
    run("verify")
    run("anchor", "-o", str(FOLDER / "anchor.json"))
    say("Now one byte of a copy of the file is changed: a step loaded 19,204 rows instead of 18,204.")
    shutil.copy(STORE, COPY)
    change_one_byte(COPY)
    run("verify", store=COPY, expect=1)
    say("Try next:")
    print(f"  {RUNWRIGHT} list --store sqlite:///{STORE}")
    print(f"  {RUNWRIGHT} show @last --at 4 --store sqlite:///{STORE}")
    print(f"  {RUNWRIGHT} events @last --json --store sqlite:///{STORE} | head -n 3")


if __name__ == "__main__":
    main()
