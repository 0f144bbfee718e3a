"""The stores for large results of tasks that runwright.toml configures: a folder, a bucket, NATS, Postgres."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

from runwright.log.factory import open_log
from runwright.log.side_tables import SideTables
from runwright.plans.playbook.result_spec import STORES
from runwright.plans.problems import did_you_mean
from runwright.storage.result_stores import FolderTier, Tier, TierFactory, Tiers

from .artifact_store import bucket_options
from .settings import invalid_setting, require_extra

LOCAL, BUCKET, NATS, POSTGRES = STORES
_FIELDS = {
    LOCAL: ("folder",),
    BUCKET: ("url", "endpoint", "region"),
    NATS: ("url", "bucket", "credentials"),
    POSTGRES: ("url",),
}


def result_tiers(
    settings: Mapping[str, Any],
    folder: Path,
    now: Callable[[], int],
    log_tables: Callable[[], SideTables] | None = None,
) -> Tiers:
    """Create the stores that `[results]` configures.

    The default is a folder next to the log, or the tables of the log itself (`log_tables`) if that is Postgres.
    """
    for name in settings:
        if name != "store" and name not in STORES:
            raise invalid_setting(f"Unknown field {name!r} in [results]. Allowed: store, {', '.join(STORES)}.")
    tables = {name: _table(settings, name) for name in STORES}
    local = Path(tables[LOCAL].get("folder", folder / "results" / "tasks")).absolute()
    stores: dict[str, TierFactory] = {LOCAL: partial(_folder, local)}
    default = LOCAL
    if log_tables is not None:
        stores[POSTGRES] = partial(_log_postgres, log_tables)
        default = POSTGRES
    for name, open_tier in ((BUCKET, _bucket), (NATS, _nats), (POSTGRES, _postgres)):
        if tables[name]:
            stores[name] = partial(open_tier, tables[name])
    chosen = settings.get("store", default)
    if chosen not in stores:
        raise invalid_setting(
            f"[results] store must be one of {', '.join(stores)}. Configure {chosen!r} in [results.{chosen}]."
        )
    return Tiers(stores, chosen, now)


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = settings.get(name, {})
    if not isinstance(value, dict):
        raise invalid_setting(f"[results.{name}] must be a table.")
    table = cast("dict[str, Any]", value)
    for field, text in table.items():
        if field not in _FIELDS[name]:
            raise invalid_setting(f"Unknown field {field!r} in [results.{name}].{did_you_mean(field, _FIELDS[name])}")
        if not isinstance(text, str) or not text:
            raise invalid_setting(f"[results.{name}] {field} must be a non-empty string.")
    if table and "url" in _FIELDS[name] and "url" not in table:
        raise invalid_setting(f"[results.{name}] requires url.")
    if name == BUCKET and table and not table["url"].startswith("s3://"):
        raise invalid_setting(f"[results.{name}] url must be s3://bucket/prefix.")
    return table


async def _folder(folder: Path) -> Tier:
    return FolderTier(folder)


async def _log_postgres(log_tables: Callable[[], SideTables]) -> Tier:
    from runwright.storage.result_store_backends import PostgresTier

    return PostgresTier(log_tables())


async def _bucket(table: Mapping[str, Any]) -> Tier:
    require_extra("obstore", "A bucket for results", "s3")
    from runwright.storage.result_store_backends import S3Tier

    return S3Tier(table["url"], bucket_options(table))


async def _nats(table: Mapping[str, Any]) -> Tier:
    require_extra("nats", "NATS", "nats")
    from runwright.storage.result_store_backends import NatsTier

    options = {"user_credentials": table["credentials"]} if "credentials" in table else {}
    return await NatsTier.connect(table["url"], table.get("bucket", "runwright-results"), options)


async def _postgres(table: Mapping[str, Any]) -> Tier:
    from runwright.storage.result_store_backends import PostgresTier

    stack = AsyncExitStack()
    log = await stack.enter_async_context(open_log(table["url"]))
    return PostgresTier(log.store.side_tables, stack.aclose)
