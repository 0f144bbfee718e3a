"""The checks of `doctor`: settings, result stores, and a server as seen from a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from runwright.config.settings import settings_table
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import to_micros
from runwright.control.confirmation_policy import read_policy
from runwright.log.system_clock import SystemClock, SystemIds
from runwright.tools.secrets import create_provider

from .session import Session

MAX_CLOCK_SKEW = 5.0  # seconds
STORE_TIMEOUT = 10.0  # seconds


class DoctorCheck(NamedTuple):
    state: str
    """ok, warn or wrong."""
    name: str
    value: str


def check_settings(folder: Path) -> list[DoctorCheck]:
    """Validate every table of runwright.toml with the reader of the process that uses it."""
    from runwright.config.artifact_store import artifact_store
    from runwright.config.result_stores import result_tiers
    from runwright.control.bootstrap import installed_tools

    now = SystemClock().now
    readers: dict[str, Callable[[dict[str, Any]], object]] = {
        "policy": read_policy,
        "secrets": create_provider,
        "http": lambda _: installed_tools(),
        "artifacts": lambda table: artifact_store(table, folder, now),
        "results": lambda table: result_tiers(table, folder, now),
    }
    if find_spec("litestar") is not None:
        from runwright.server.settings import read_server_settings

        readers["server"] = read_server_settings
    checks: list[DoctorCheck] = []
    for name, reader in readers.items():
        try:
            table = settings_table(name)
            reader(table)
        except RunwrightError as error:
            checks.append(DoctorCheck("wrong", f"[{name}]", error.detail))
        else:
            checks.append(DoctorCheck("ok", f"[{name}]", f"{len(table)} settings" if table else "defaults"))
    return checks


async def check_result_stores(folder: Path) -> list[DoctorCheck]:
    """Write, read and delete a value in each result store of runwright.toml."""
    from runwright.config.result_stores import result_tiers

    table = settings_table("results")
    try:
        tiers = result_tiers(table, folder, SystemClock().now)
    except RunwrightError:
        return []  # Reported by check_settings.
    checks: list[DoctorCheck] = []
    for name in table.keys() - {"store"}:
        try:
            async with asyncio.timeout(STORE_TIMEOUT):
                await tiers.probe(name, SystemIds().event_id())
        except RunwrightError as error:
            checks.append(DoctorCheck("wrong", f"[results.{name}]", f"{error.code} {error.detail}"))
        except TimeoutError:
            checks.append(DoctorCheck("wrong", f"[results.{name}]", f"timed out after {STORE_TIMEOUT:g} s"))
        else:
            checks.append(DoctorCheck("ok", f"[results.{name}]", "written, read, deleted"))
    await tiers.close()
    return sorted(checks)


async def check_server(session: Session) -> list[DoctorCheck]:
    """Check a server from outside: liveness, readiness, the token, and the health of its store."""
    from runwright.client.transport import HttpTransport

    assert session.server is not None
    transport = HttpTransport([session.server], session.token, retry_seconds=0.0)
    checks: list[DoctorCheck] = []
    try:
        response = await transport.send("GET", "/healthz")
        checks.append(DoctorCheck("ok", "server", session.server))
        checks.append(_check_clock(response.headers.get("date")))
        for name, (path, format_document) in _ENDPOINTS.items():
            checks.append(await _check_endpoint(transport, name, path, format_document))
        if not session.server.startswith("https://") and "127.0.0.1" not in session.server:
            checks.append(DoctorCheck("warn", "transport", "not encrypted: tokens are sent in clear text"))
    except RunwrightError as error:
        checks.append(DoctorCheck("wrong", "server", f"{error.code} {error.detail}"))
    finally:
        await transport.close()
    return checks


def _format_status(document: dict[str, Any]) -> str:
    return str(document["status"])


def _format_identity(document: dict[str, Any]) -> str:
    permissions = ", ".join((*document["roles"], *document["scopes"])) or "none"
    tenant = document["tenantId"] or "every tenant"
    return f"{document['actorId']} in {tenant}: {permissions}"


def _format_store(document: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in document.items())


def _format_alerts(document: dict[str, Any]) -> str:
    return f"{len(document['alerts'])}"


_ENDPOINTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "ready": ("/readyz", _format_status),
    "you are": ("/v1/whoami", _format_identity),
    "store": ("/v1/store", _format_store),
    "alerts": ("/v1/alerts", _format_alerts),
}


async def _check_endpoint(transport: Any, name: str, path: str, format_document: Callable[[Any], str]) -> DoctorCheck:
    try:
        return DoctorCheck("ok", name, format_document(await transport.get(path)))
    except RunwrightError as error:
        if error.code == ErrorCode.AUTHZ_DENIED:
            return DoctorCheck("ok", name, "not permitted with this token")
        return DoctorCheck("wrong", name, f"{error.code} {error.detail}")


def _check_clock(date: str | None) -> DoctorCheck:
    """Compare this machine's clock with the Date header of the server."""
    from email.utils import parsedate_to_datetime

    if date is None:
        return DoctorCheck("warn", "clock", "the server sent no Date header")
    server_time = to_micros(parsedate_to_datetime(date).isoformat().replace("+00:00", "Z"))
    skew = abs(SystemClock().now() - server_time) / 1e6
    state = "ok" if skew < MAX_CLOCK_SKEW else "warn"
    return DoctorCheck(state, "clock", f"{skew:.0f} s from the server's clock")
