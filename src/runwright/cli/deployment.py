"""What `doctor` finds out about a deployment: settings that cannot be used, and a server's state from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import to_micros
from runwright.control.policy import read_policy
from runwright.control.settings import settings_table
from runwright.log.clock import SystemClock, SystemIds
from runwright.tools.secrets import provider_from

from .session import Session

Fact = tuple[str, str, str]
"""ok, warn or wrong; what was looked at; what was found."""
MOST_SKEW = 5.0
PATIENCE = 10.0  # seconds for a store of results


def settings_facts(folder: Path) -> list[Fact]:
    """Every table of runwright.toml, read as the process that uses it would read it."""
    from runwright.control.artifacts import artifact_store
    from runwright.control.open import tools_here
    from runwright.control.results import result_tiers

    now = SystemClock().now
    readers: dict[str, Callable[[dict[str, Any]], object]] = {
        "policy": read_policy,
        "secrets": provider_from,
        "http": lambda _: tools_here(),
        "artifacts": lambda table: artifact_store(table, folder, now),
        "results": lambda table: result_tiers(table, folder, now),
    }
    if find_spec("litestar") is not None:
        from runwright.server.settings import read_server_settings

        readers["server"] = read_server_settings
    facts: list[Fact] = []
    for name, reader in readers.items():
        try:
            table = settings_table(name)
            reader(table)
        except RunwrightError as error:
            facts.append(("wrong", f"[{name}]", error.detail))
        else:
            facts.append(("ok", f"[{name}]", f"{len(table)} settings" if table else "defaults"))
    return facts


async def result_facts(folder: Path) -> list[Fact]:
    """The stores for results that runwright.toml names, each tried out."""
    from runwright.control.results import result_tiers

    table = settings_table("results")
    try:
        tiers = result_tiers(table, folder, SystemClock().now)
    except RunwrightError:
        return []  # said with the settings
    facts: list[Fact] = []
    for name in table.keys() - {"store"}:
        try:
            async with asyncio.timeout(PATIENCE):
                await tiers.try_out(name, SystemIds().event_id())
        except RunwrightError as error:
            facts.append(("wrong", f"[results.{name}]", f"{error.code} {error.detail}"))
        except TimeoutError:
            facts.append(("wrong", f"[results.{name}]", f"no answer within {PATIENCE:g} s"))
        else:
            facts.append(("ok", f"[results.{name}]", "written, read, deleted"))
    await tiers.close()
    return sorted(facts)


async def look_at_server(session: Session) -> list[Fact]:
    """A server from outside: whether it lives, is ready, knows us, and what its store says."""
    from runwright.client.line import Line

    assert session.server is not None
    line = Line([session.server], session.token, patience=0.0)
    facts: list[Fact] = []
    try:
        answer = await line.send("GET", "/healthz")
        facts.append(("ok", "server", session.server))
        facts.append(_skew(answer.headers.get("date")))
        for name, (path, shown) in _QUESTIONS.items():
            facts.append(await _ask(line, name, path, shown))
        if not session.server.startswith("https://") and "127.0.0.1" not in session.server:
            facts.append(("warn", "transport", "not encrypted: tokens can be read on the way"))
    except RunwrightError as error:
        facts.append(("wrong", "server", f"{error.code} {error.detail}"))
    finally:
        await line.close()
    return facts


def _state(found: dict[str, Any]) -> str:
    return str(found["status"])


def _who(found: dict[str, Any]) -> str:
    may = ", ".join((*found["roles"], *found["scopes"])) or "nothing"
    where = found["tenantId"] or "every tenant"
    return f"{found['actorId']} in {where}: {may}"


def _store(found: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items())


def _alerts(found: dict[str, Any]) -> str:
    return f"{len(found['alerts'])}"


_QUESTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "ready": ("/readyz", _state),
    "you are": ("/v1/whoami", _who),
    "store": ("/v1/store", _store),
    "alerts": ("/v1/alerts", _alerts),
}


async def _ask(line: Any, name: str, path: str, shown: Callable[[Any], str]) -> Fact:
    try:
        return ("ok", name, shown(await line.get(path)))
    except RunwrightError as error:
        denied = error.code == ErrorCode.AUTHZ_DENIED
        return ("ok" if denied else "wrong", name, "not for you to see" if denied else f"{error.code} {error.detail}")


def _skew(date: str | None) -> Fact:
    """How far this machine's clock is from the server's."""
    from email.utils import parsedate_to_datetime

    if date is None:
        return ("warn", "clock", "the server does not say")
    theirs = to_micros(parsedate_to_datetime(date).isoformat().replace("+00:00", "Z"))
    apart = abs(SystemClock().now() - theirs) / 1e6
    state = "ok" if apart < MOST_SKEW else "warn"
    return (state, "clock", f"{apart:.0f} s from the server's")
