"""Checking: verify, anchor, rebuild, doctor."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from runwright import __version__
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.core.verify import Finding
from runwright.log.anchor import (
    KEY_FILE,
    compare,
    load_key,
    load_or_make_key,
    load_public_key,
    make_anchor,
    read_anchor,
)
from runwright.log.reader import LogReader

from .deployment import look_at_server, result_facts, settings_facts
from .render import plain, plural, table
from .session import DONE, FOUND_SOMETHING, Session, command


@command("verify")
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="Every run (the default when no run is named).")
@click.option(
    "--anchor", "anchor_file", type=click.Path(path_type=Path), help="Also hold the store against this anchor."
)
@click.option(
    "--key", "key_file", type=click.Path(path_type=Path), help="The key that must have signed the anchor (PEM)."
)
async def verify_command(
    session: Session, run: str | None, every: bool, anchor_file: Path | None, key_file: Path | None
) -> int:
    """Prove that no event was changed, removed, added or moved since it was acknowledged.

    An anchor made earlier also shows a cut tail, a deleted run and a history chained anew. Exits with 1 if
    anything is found. Erased payloads (REDACTED) are told but are no damage.
    """
    if run is not None and every:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Name a run or say --all, not both.")
    if key_file is not None and anchor_file is None:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, "--key says who must have signed the anchor: name one with --anchor."
        )
    findings: list[Finding] = []
    async with session.open() as log:
        against = [] if anchor_file is None else await _against_anchor(session, log, anchor_file, key_file)
        gone = run is not None and any(finding.run_id == run for finding in against) and await _is_gone(log, run)
        run_id = run if gone or run is None else (await log.resolve(run)).identity.run_id
        findings += [finding for finding in against if run_id in (None, finding.run_id)]
        if gone:
            counts = {"runs": 0, "events": 0}
            return _tell(session, findings, counts, anchor_file)
        findings += [finding async for finding in log.verify(run_id)]
        counts = await log.health() if run_id is None else {"runs": 1, "events": (await log.find_run(run_id)).last_seq}
    return _tell(session, findings, counts, anchor_file)


async def _is_gone(log: LogReader, run_id: str) -> bool:
    try:
        await log.find_run(run_id)
    except RunwrightError as error:
        return error.code == ErrorCode.RUN_NOT_FOUND
    return False


def _tell(session: Session, findings: list[Finding], counts: dict[str, Any], anchor_file: Path | None) -> int:
    damaged = any(finding.is_damage for finding in findings)
    if session.as_json:
        session.print_json(
            {"ok": not damaged, "runs": counts["runs"], "events": counts["events"], "findings": findings}
        )
        return FOUND_SOMETHING if damaged else DONE
    if findings:
        rows = [(f.run_id, "" if f.run_seq is None else str(f.run_seq), f.kind, f.detail) for f in findings]
        table(("RUN", "EVENT", "", "WHAT"), rows)
    what = f"{plural(counts['runs'], 'run')}, {plural(counts['events'], 'event')}"
    click.echo(
        click.style("DAMAGED", fg="red", bold=True) if damaged else click.style("ok", fg="green", bold=True), nl=False
    )
    click.echo(f"  {what} checked" + ("" if anchor_file is None else f" against {anchor_file}"))
    return FOUND_SOMETHING if damaged else DONE


async def _against_anchor(session: Session, log: LogReader, anchor_file: Path, key_file: Path | None) -> list[Finding]:
    own_key = session.state_folder / KEY_FILE
    trusted = key_file or (own_key if own_key.exists() else None)
    try:
        content = anchor_file.read_bytes()
    except OSError as error:
        raise RunwrightError(ErrorCode.ANCHOR_INVALID, f"{anchor_file} cannot be read: {error.strerror}.") from None
    anchor = read_anchor(content, None if trusted is None else load_public_key(trusted))
    if trusted is None:
        click.echo(f"No key to hold the anchor against: trusting the one inside it ({anchor.fingerprint}).", err=True)
    return [finding async for finding in compare(log, anchor)]


@command("anchor")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it here instead of to standard output.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Sign with this Ed25519 key (PEM).")
async def anchor_command(session: Session, output: Path | None, key_file: Path | None) -> int:
    """Write a signed statement of where every run stands. Keep it away from the store.

    It is signed with the store's own key, made on first use in the store's folder, unless --key names another.
    """
    async with session.open() as log:
        key = load_or_make_key(session.state_folder) if key_file is None else load_key(key_file)
        anchor = await make_anchor(log, key)
    if output is None:
        click.echo(anchor.to_json())
        return DONE
    try:
        output.write_bytes(anchor.to_json() + b"\n")
    except OSError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{output} cannot be written: {error.strerror}.") from None
    facts = {"file": str(output), "runs": len(anchor.runs), "root": anchor.root, "key": anchor.fingerprint}
    if session.as_json:
        session.print_json(facts)
    else:
        click.echo(
            f"{output}: {plural(len(anchor.runs), 'run')}, root {anchor.root[:16]}…, signed by {anchor.fingerprint}"
        )
    return DONE


@command("rebuild")
@click.option("--check", is_flag=True, help="Only compare; exit with 1 if a summary is not the fold of its events.")
async def rebuild_command(session: Session, check: bool) -> int:
    """Fold every run anew from its events, and write its summary again where it differs."""
    async with session.open() as log:
        report = await log.rebuild(check=check)
    if session.as_json:
        session.print_json(msgspec.to_builtins(report))
    else:
        for run_id in report.different:
            click.echo(f"{plain(run_id)}: the summary {'is not' if check else 'was not'} the fold of its events")
        verb = "differ" if check else "mended"
        click.echo(f"{plural(report.runs, 'run')} folded, {len(report.different)} {verb}")
    return FOUND_SOMETHING if check and report.different else DONE


@command("doctor")
async def doctor_command(session: Session) -> int:
    """Check this installation and the store, and say what is wrong."""
    facts: list[tuple[str, str, str]] = [
        ("ok", "runwright", __version__),
        ("ok" if (3, 11) <= sys.version_info < (3, 14) else "warn", "python", platform.python_version()),
    ]
    if session.server is not None:
        return _told(session, [*facts, *await look_at_server(session)])
    path = session.sqlite_path
    if path is not None and not path.exists():
        facts.append(("ok", "store", f"none yet at {path}; the first append makes it"))
    else:
        facts += await _look_at_store(session)
    if path is not None and path.exists():
        free = shutil.disk_usage(path.parent).free
        facts.append(("ok" if free > 1 << 30 else "warn", "free disk", f"{free / (1 << 30):.1f} GiB"))
    key = session.state_folder / KEY_FILE
    if key.exists():
        closed = not os.stat(key).st_mode & 0o077
        facts.append(
            ("ok" if closed else "warn", "anchor key", f"{key}" + ("" if closed else " is readable by others"))
        )
    folder = session.state_folder
    return _told(session, [*facts, *settings_facts(folder), *await result_facts(folder)])


def _told(session: Session, facts: Sequence[tuple[str, str, str]]) -> int:
    if session.as_json:
        session.print_json([{"state": state, "name": name, "value": value} for state, name, value in facts])
    else:
        table(("", "CHECK", "FOUND"), facts)
    return FOUND_SOMETHING if any(state == "wrong" for state, _, _ in facts) else DONE


async def _look_at_store(session: Session) -> list[tuple[str, str, str]]:
    async with session.open() as log:
        facts = [("ok", name, str(value)) for name, value in (await log.health()).items()]
        alerts = await log.alerts()
    word = f"{len(alerts)}, see `runwright alerts`" if alerts else "none"
    return [*facts, ("warn" if alerts else "ok", "alerts", word)]
