"""Parse `spec.result` of a task: where a large result is stored, and which parts of it stay inline."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from runwright.contract.plan_struct import make_canonical
from runwright.contract.playbook import (
    Compression,
    Manifest,
    ManifestStrategy,
    ResultPolicy,
    ResultScope,
    SelectedField,
    StoragePolicy,
)
from runwright.core.playbook.scope import RESERVED_NAMES
from runwright.core.scheduling.result_refs import parse_field_path
from runwright.core.scheduling.stored_values import INLINE_LIMIT
from runwright.plans.field_reader import FieldReader
from runwright.plans.problems import INVALID_STEP, ProblemCollector, did_you_mean

STORES = ("local", "s3", "nats_object", "postgres")
_STORE_ALIASES = {
    "auto": None,
    "file": "local",
    "disk": "local",
    "nats": "nats_object",
    "object": "nats_object",
    "kv": "nats_object",
    "nats_kv": "nats_object",
    "db": "postgres",
}


def read_result_policy(result: FieldReader | None, labels: Collection[str], problems: ProblemCollector) -> ResultPolicy:
    if result is None:
        return ResultPolicy()
    known = ("inline_max_bytes", "preview_max_bytes", "store", "select", "manifest")
    result.reject_unknown(known, "`result`")
    return make_canonical(
        ResultPolicy,
        inline_max_bytes=_bytes(result, "inline_max_bytes"),
        preview_max_bytes=_bytes(result, "preview_max_bytes"),
        store=_storage(result.nested("store"), problems),
        select=tuple(_selections(result, problems)),
        manifest=_manifest(result.nested("manifest"), labels),
    )


def _bytes(fields: FieldReader, name: str) -> int | None:
    return fields.integer(name, INLINE_LIMIT, 0, INLINE_LIMIT) if name in fields else None


def _storage(store: FieldReader | None, problems: ProblemCollector) -> StoragePolicy:
    if store is None:
        return StoragePolicy()
    store.reject_unknown(("kind", "ttl", "scope", "compression"), "`store`")
    return make_canonical(
        StoragePolicy,
        kind=_store_kind(store, problems),
        ttl=store.duration("ttl", 1.0) if "ttl" in store else None,
        scope=store.choice("scope", ResultScope.PERMANENT),
        compression=store.choice("compression", Compression.NONE),
    )


def _store_kind(store: FieldReader, problems: ProblemCollector) -> str | None:
    kind = store.text("kind")
    if kind in (*STORES, None):
        return kind
    if kind in _STORE_ALIASES:
        if "kv" in kind:
            problems.warning((*store.path, "kind"), f"Results in `{kind}` are stored in the object store of NATS.")
        return _STORE_ALIASES[kind]
    advice = did_you_mean(kind, STORES) or f" Use one of {', '.join(('auto', *STORES))}."
    store.error("kind", f"Unknown store {kind!r}.{advice}")
    return None


def _selections(result: FieldReader, problems: ProblemCollector) -> list[SelectedField]:
    found: list[SelectedField] = []
    data: Any = result.raw("select") or []
    for index, item in enumerate(cast("list[Any]", data) if isinstance(data, list) else [data]):
        item_path = (*result.path, "select", index)
        fields = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        path, name = fields.get("path"), fields.get("as")
        if not isinstance(path, str) or not isinstance(name, str) or fields.keys() != {"path", "as"}:
            problems.error(item_path, INVALID_STEP, "`select` must be a list of `{path, as}` mappings.")
        elif parse_field_path(path) is None:
            sentence = f"Invalid path {path!r}. Write it as `$.paging.next` or `rows[0].id`."
            problems.error(item_path, INVALID_STEP, sentence)
        elif not name.isidentifier() or name.startswith("_"):
            problems.error(item_path, INVALID_STEP, f"Invalid field name {name!r}: use letters, digits and `_`.")
        else:
            found.append(SelectedField(path, name))
    return found


def _manifest(manifest: FieldReader | None, labels: Collection[str]) -> Manifest | None:
    if manifest is None:
        return None
    manifest.reject_unknown(("as", "strategy", "path"), "`manifest`")
    name, path = manifest.text("as"), manifest.text("path")
    if name is None:
        manifest.error(None, "`manifest` requires `as`: the name under which the parts are collected.")
        return None
    if not name.isidentifier() or name in RESERVED_NAMES or name in labels:
        sentence = f"Invalid manifest name {name!r}: it must be an identifier with no other meaning in the pipeline."
        manifest.error("as", sentence)
    if path is not None and parse_field_path(path) is None:
        manifest.error("path", f"Invalid path {path!r}. Write it as `$.data.rows`.")
    return make_canonical(Manifest, name=name, strategy=manifest.choice("strategy", ManifestStrategy.APPEND), path=path)
