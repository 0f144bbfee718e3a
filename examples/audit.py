"""A tour of the log: append a recorded run, show it at several events, verify it, then tamper with it.

Run it with `.venv/bin/python examples/audit.py`. All its files are in .runwright/audit.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import apsw

HERE = Path(__file__).parent  # Relative if the script was called so: the printed commands can be copied.
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
    """Tamper with the file: 18,204 rows become 19,204."""
    content = path.read_bytes()
    before, after = b'"rows":18204', b'"rows":19204'
    place = content.find(before)
    while place >= 0:  # The file may contain the text twice, once in a free page.
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
    say("Append a recorded run: six steps, a retry, two pauses, and a late duplicate.")
    run("append", str(HERE / "recorded-run.jsonl"))
    say("Its state is folded from its events.")
    run("show", "@last")
    say("It can be shown as of any event. At event 11 it had just been paused:")
    run("show", "@last", "--at", "11")
    say("Its events, in order:")
    run("events", "@last")
    say("No event was changed since it was acknowledged:")
    run("verify")
    run("anchor", "-o", str(FOLDER / "anchor.json"))
    say("Change one byte of a copy of the file: a step loaded 19,204 rows instead of 18,204.")
    shutil.copy(STORE, COPY)
    change_one_byte(COPY)
    run("verify", store=COPY, expect=1)
    say("Try next:")
    print(f"  {RUNWRIGHT} list --store sqlite:///{STORE}")
    print(f"  {RUNWRIGHT} show @last --at 4 --store sqlite:///{STORE}")
    print(f"  {RUNWRIGHT} events @last --json --store sqlite:///{STORE} | head -n 3")


if __name__ == "__main__":
    main()
