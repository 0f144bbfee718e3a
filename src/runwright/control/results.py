"""The stores for large results of tasks that runwright.toml names: a folder, a bucket, NATS, Postgres."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.desk import Desk
from runwright.log.open import open_log
from runwright.plans.playbook_keeping import STORES
from runwright.plans.problems import did_you_mean
from runwright.results.tiers import FolderTier, Opening, Tier, Tiers

from .artifacts import bucket_options

LOCAL, BUCKET, NATS, POSTGRES = STORES
_FIELDS = {
    LOCAL: ("folder",),
    BUCKET: ("url", "endpoint", "region"),
    NATS: ("url", "bucket", "credentials"),
    POSTGRES: ("url",),
}


def result_tiers(
    settings: Mapping[str, Any], folder: Path, now: Callable[[], int], own: Callable[[], Desk] | None = None
) -> Tiers:
    """What `[results]` says. Without it: a folder beside the log, or where that is Postgres, its tables (`own`)."""
    for name in settings:
        if name != "store" and name not in STORES:
            raise _refused(f"[results] has no {name!r}. It has store, {', '.join(STORES)}.")
    tables = {name: _table(settings, name) for name in STORES}
    local = Path(tables[LOCAL].get("folder", folder / "results" / "tasks")).absolute()
    stores: dict[str, Opening] = {LOCAL: partial(_folder, local)}
    usual = LOCAL
    if own is not None:
        stores[POSTGRES] = partial(_own_postgres, own)
        usual = POSTGRES
    for name, opening in ((BUCKET, _bucket), (NATS, _nats), (POSTGRES, _postgres)):
        if tables[name]:
            stores[name] = partial(opening, tables[name])
    chosen = settings.get("store", usual)
    if chosen not in stores:
        raise _refused(f"[results] store is one of {', '.join(stores)}; say where {chosen!r} is in [results.{chosen}].")
    return Tiers(stores, chosen, now)


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = settings.get(name, {})
    if not isinstance(given, dict):
        raise _refused(f"write [results.{name}] as a table.")
    table = cast("dict[str, Any]", given)
    for field, value in table.items():
        if field not in _FIELDS[name]:
            raise _refused(f"[results.{name}] has no {field!r}.{did_you_mean(field, _FIELDS[name])}")
        if not isinstance(value, str) or not value:
            raise _refused(f"[results.{name}] {field} is text.")
    if table and "url" in _FIELDS[name] and "url" not in table:
        raise _refused(f"[results.{name}] has no url.")
    if name == BUCKET and table and not table["url"].startswith("s3://"):
        raise _refused(f"[results.{name}] url is s3://bucket/prefix.")
    return table


async def _folder(folder: Path) -> Tier:
    return FolderTier(folder)


async def _own_postgres(own: Callable[[], Desk]) -> Tier:
    from runwright.results.tier_stores import PostgresTier

    return PostgresTier(own())


async def _bucket(table: Mapping[str, Any]) -> Tier:
    _need("obstore", "A bucket for results", "s3")
    from runwright.results.tier_stores import BucketTier

    return BucketTier(table["url"], bucket_options(table))


async def _nats(table: Mapping[str, Any]) -> Tier:
    _need("nats", "NATS", "nats")
    from runwright.results.tier_stores import NatsTier

    options = {"user_credentials": table["credentials"]} if "credentials" in table else {}
    return await NatsTier.connect(table["url"], table.get("bucket", "runwright-results"), options)


async def _postgres(table: Mapping[str, Any]) -> Tier:
    from runwright.results.tier_stores import PostgresTier

    stack = AsyncExitStack()
    log = await stack.enter_async_context(open_log(table["url"]))
    return PostgresTier(log.desk, stack.aclose)


def _need(module: str, what: str, extra: str) -> None:
    if find_spec(module) is None:
        raise _refused(f"{what} needs `runwright[{extra}]`. Install it.")


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: {sentence}")
