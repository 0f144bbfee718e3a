"""A guided look at the log: append a recorded run, show it, scrub it, verify it, then tamper with it.

Run it with `make demo`. Everything it makes is in .runwright/demo.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import apsw

HERE = Path(__file__).parent  # given as it was called, so that the commands printed can be copied
FOLDER = Path(".runwright/demo")
STORE, COPY = FOLDER / "runs.db", FOLDER / "tampered.db"
RUNWRIGHT = ".venv/bin/runwright"


def say(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def run(*arguments: str, store: Path = STORE, expect: int = 0) -> None:
    print(f"$ runwright {' '.join(arguments)} --store sqlite:///{store}", flush=True)
    done = subprocess.run([Path(sys.executable).with_name("runwright"), *arguments, "--store", f"sqlite:///{store}"], check=False)
    if done.returncode != expect:
        sys.exit(f"expected exit code {expect}, got {done.returncode}")


def change_one_byte(path: Path) -> None:
    """What someone with access to the file might do: 18,204 rows become 19,204."""
    content = path.read_bytes()
    assert content.count(b'"rows":18204') == 1
    place = content.index(b'"rows":18204') + len(b'"rows":1')
    path.write_bytes(content[:place] + b"9" + content[place + 1 :])


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
    apsw.Connection(str(STORE)).execute("VACUUM INTO ?", (str(COPY),))
    change_one_byte(COPY)
    run("verify", store=COPY, expect=1)
    say("Try next:")
    print(f"  {RUNWRIGHT} list --store sqlite:///{STORE}")
    print(f"  {RUNWRIGHT} show @last --at 4 --store sqlite:///{STORE}")
    print(f"  {RUNWRIGHT} events @last --json --store sqlite:///{STORE} | head -n 3")


if __name__ == "__main__":
    main()
