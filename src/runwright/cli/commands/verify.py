"""`verify`, `anchor`, `rebuild` and `doctor`: check the log and the installation."""

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
from runwright.cli.doctor_checks import DoctorCheck, check_result_stores, check_server, check_settings
from runwright.cli.run_argument import resolve_run_id
from runwright.cli.session import EXIT_OK, EXIT_PROBLEMS, Session, command
from runwright.cli.terminal.formatting import plural, print_table, printable
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.core.integrity.verify import Finding
from runwright.log.anchor import (
    KEY_FILE,
    compare,
    load_key,
    load_or_create_key,
    load_public_key,
    make_anchor,
    read_anchor,
)
from runwright.log.protocols import LogReader

MIN_FREE_DISK = 1 << 30


@command("verify")
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="Verify all runs [default without RUN].")
@click.option(
    "--anchor", "anchor_file", type=click.Path(path_type=Path), help="Also compare the store with this anchor."
)
@click.option(
    "--key", "key_file", type=click.Path(path_type=Path), help="Public key that must have signed the anchor (PEM)."
)
async def verify_command(
    session: Session, run: str | None, every: bool, anchor_file: Path | None, key_file: Path | None
) -> int:
    """Verify the hash chain of runs: no event was changed, removed, added or moved after it was acknowledged.

    An anchor also reveals a truncated run, a deleted run and a rewritten history. Exits with 1 if there are
    problems. Erased payloads (REDACTED) are reported but are not a problem.
    """
    if run is not None and every:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "RUN and --all are mutually exclusive.")
    if key_file is not None and anchor_file is None:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "--key requires --anchor.")
    findings: list[Finding] = []
    async with session.open() as log:
        differences = [] if anchor_file is None else await _compare_anchor(session, log, anchor_file, key_file)
        is_named = run is not None and any(finding.run_id == run for finding in differences)
        is_deleted = run is not None and is_named and await _is_deleted(log, run)
        run_id = run if is_deleted or run is None else await resolve_run_id(log, run)
        findings += [finding for finding in differences if run_id in (None, finding.run_id)]
        if is_deleted:
            return _show_findings(session, findings, {"runs": 0, "events": 0}, anchor_file)
        findings += [finding async for finding in log.verify(run_id)]
        counts = await log.health() if run_id is None else {"runs": 1, "events": (await log.find_run(run_id)).last_seq}
    return _show_findings(session, findings, counts, anchor_file)


async def _is_deleted(log: LogReader, run_id: str) -> bool:
    try:
        await log.find_run(run_id)
    except RunwrightError as error:
        return error.code == ErrorCode.RUN_NOT_FOUND
    return False


def _show_findings(session: Session, findings: list[Finding], counts: dict[str, Any], anchor_file: Path | None) -> int:
    """Print the findings; return the exit code."""
    is_damaged = any(finding.is_damage for finding in findings)
    exit_code = EXIT_PROBLEMS if is_damaged else EXIT_OK
    if session.as_json:
        session.print_json(
            {"ok": not is_damaged, "runs": counts["runs"], "events": counts["events"], "findings": findings}
        )
        return exit_code
    if findings:
        rows = [(f.run_id, "" if f.run_seq is None else str(f.run_seq), f.kind, f.detail) for f in findings]
        print_table(("RUN", "EVENT", "", "FINDING"), rows)
    verdict = click.style("DAMAGED", fg="red", bold=True) if is_damaged else click.style("ok", fg="green", bold=True)
    checked = f"{plural(counts['runs'], 'run')}, {plural(counts['events'], 'event')} checked"
    click.echo(f"{verdict}  {checked}" + ("" if anchor_file is None else f" against {anchor_file}"))
    return exit_code


async def _compare_anchor(session: Session, log: LogReader, anchor_file: Path, key_file: Path | None) -> list[Finding]:
    own_key = session.state_folder / KEY_FILE
    trusted = key_file or (own_key if own_key.exists() else None)
    try:
        content = anchor_file.read_bytes()
    except OSError as error:
        raise RunwrightError(ErrorCode.ANCHOR_INVALID, f"Cannot read {anchor_file}: {error.strerror}.") from None
    anchor = read_anchor(content, None if trusted is None else load_public_key(trusted))
    if trusted is None:
        click.echo(f"No trusted key: using the public key in the anchor ({anchor.fingerprint}).", err=True)
    return [finding async for finding in compare(log, anchor)]


@command("anchor")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Output file [default: standard output].")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Sign with this Ed25519 key (PEM).")
async def anchor_command(session: Session, output: Path | None, key_file: Path | None) -> int:
    """Write a signed anchor of all run heads. Store it away from the log.

    The anchor is signed with the store's own key, which is created in the store's directory on first use, unless
    --key names another.
    """
    async with session.open() as log:
        key = load_or_create_key(session.state_folder) if key_file is None else load_key(key_file)
        anchor = await make_anchor(log, key)
    if output is None:
        click.echo(anchor.to_json())
        return EXIT_OK
    try:
        output.write_bytes(anchor.to_json() + b"\n")
    except OSError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Cannot write {output}: {error.strerror}.") from None
    if session.as_json:
        document = {"file": str(output), "runs": len(anchor.runs), "root": anchor.root, "key": anchor.fingerprint}
        session.print_json(document)
    else:
        click.echo(
            f"{output}: {plural(len(anchor.runs), 'run')}, root {anchor.root[:16]}…, signed by {anchor.fingerprint}"
        )
    return EXIT_OK


@command("rebuild")
@click.option(
    "--check", is_flag=True, help="Only compare; exit with 1 if a summary differs from the fold of its events."
)
async def rebuild_command(session: Session, check: bool) -> int:
    """Rebuild run summaries from events (--check compares only)."""
    async with session.open() as log:
        report = await log.rebuild(check=check)
    if session.as_json:
        session.print_json(msgspec.to_builtins(report))
    else:
        for run_id in report.different:
            click.echo(
                f"{printable(run_id)}: the summary {'differs' if check else 'differed'} from the fold of its events"
            )
        verb = "differ" if check else "repaired"
        click.echo(f"{plural(report.runs, 'run')} folded, {len(report.different)} {verb}")
    return EXIT_PROBLEMS if check and report.different else EXIT_OK


@command("doctor")
async def doctor_command(session: Session) -> int:
    """Check the store and this installation, and report problems."""
    checks = [
        DoctorCheck("ok", "runwright", __version__),
        DoctorCheck("ok" if (3, 11) <= sys.version_info < (3, 14) else "warn", "python", platform.python_version()),
    ]
    if session.server is not None:
        return _show_checks(session, [*checks, *await check_server(session)])
    path = session.sqlite_path
    if path is not None and not path.exists():
        checks.append(DoctorCheck("ok", "store", f"none yet at {path}; the first append creates it"))
    else:
        checks += await _check_store(session)
    if path is not None and path.exists():
        free = shutil.disk_usage(path.parent).free
        checks.append(DoctorCheck("ok" if free > MIN_FREE_DISK else "warn", "free disk", f"{free / (1 << 30):.1f} GiB"))
    key = session.state_folder / KEY_FILE
    if key.exists():
        is_private = not os.stat(key).st_mode & 0o077
        value = f"{key}" + ("" if is_private else " is readable by others")
        checks.append(DoctorCheck("ok" if is_private else "warn", "anchor key", value))
    folder = session.state_folder
    return _show_checks(session, [*checks, *check_settings(folder), *await check_result_stores(folder)])


def _show_checks(session: Session, checks: Sequence[DoctorCheck]) -> int:
    """Print the checks; return the exit code."""
    if session.as_json:
        session.print_json([check._asdict() for check in checks])
    else:
        print_table(("", "CHECK", "RESULT"), checks)
    return EXIT_PROBLEMS if any(check.state == "wrong" for check in checks) else EXIT_OK


async def _check_store(session: Session) -> list[DoctorCheck]:
    async with session.open() as log:
        checks = [DoctorCheck("ok", name, str(value)) for name, value in (await log.health()).items()]
        alerts = await log.alerts()
    value = f"{len(alerts)}, see `runwright alerts`" if alerts else "none"
    return [*checks, DoctorCheck("warn" if alerts else "ok", "alerts", value)]
