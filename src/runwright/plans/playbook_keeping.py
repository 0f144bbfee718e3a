"""`spec.result` of a task: where its result goes when it is large, and what of it stays at hand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from runwright.contract.playbook import Compression, Keeping, Manifest, Scope, Select, Storing, Strategy
from runwright.core.keeping import steps_of
from runwright.core.playscope import RESERVED_NAMES
from runwright.core.refer import INLINE_LIMIT

from .fields import Fields
from .parts import make_part
from .problems import STEP, Findings, did_you_mean

STORES = ("local", "s3", "nats_object", "postgres")
_ALSO = {
    "auto": None,
    "file": "local",
    "disk": "local",
    "nats": "nats_object",
    "object": "nats_object",
    "kv": "nats_object",
    "nats_kv": "nats_object",
    "db": "postgres",
}


def read_keeping(result: Fields | None, labels: Collection[str], findings: Findings) -> Keeping:
    if result is None:
        return Keeping()
    known = ("inline_max_bytes", "preview_max_bytes", "store", "select", "manifest")
    result.refuse_unknown(known, "`result`")
    return make_part(
        Keeping,
        inline_max_bytes=_bytes(result, "inline_max_bytes"),
        preview_max_bytes=_bytes(result, "preview_max_bytes"),
        store=_storing(result.part("store"), findings),
        select=tuple(_selected(result, findings)),
        manifest=_manifest(result.part("manifest"), labels),
    )


def _bytes(fields: Fields, name: str) -> int | None:
    return fields.whole(name, INLINE_LIMIT, 0, INLINE_LIMIT) if name in fields else None


def _storing(store: Fields | None, findings: Findings) -> Storing:
    if store is None:
        return Storing()
    store.refuse_unknown(("kind", "ttl", "scope", "compression"), "`store`")
    return make_part(
        Storing,
        kind=_kind(store, findings),
        ttl=store.duration("ttl", 1.0) if "ttl" in store else None,
        scope=store.choice("scope", Scope.PERMANENT),
        compression=store.choice("compression", Compression.NONE),
    )


def _kind(store: Fields, findings: Findings) -> str | None:
    kind = store.text("kind")
    if kind in (*STORES, None):
        return kind
    if kind in _ALSO:
        if "kv" in kind:
            findings.warning((*store.path, "kind"), f"`{kind}` is kept in the object store of NATS.")
        return _ALSO[kind]
    store.wrong("kind", f"There is no store {kind!r}.{did_you_mean(kind, STORES) or f' It is one of {_listed()}.'}")
    return None


def _listed() -> str:
    return ", ".join(("auto", *STORES))


def _selected(result: Fields, findings: Findings) -> list[Select]:
    found: list[Select] = []
    given: Any = result.raw("select") or []
    for at, each in enumerate(cast("list[Any]", given) if isinstance(given, list) else [given]):
        place = (*result.path, "select", at)
        fields = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        path, name = fields.get("path"), fields.get("as")
        if not isinstance(path, str) or not isinstance(name, str) or fields.keys() != {"path", "as"}:
            findings.error(place, STEP, "`select` is a list of `{path, as}`.")
        elif steps_of(path) is None:
            findings.error(place, STEP, f"{path!r} is no path. Write it as `$.paging.next` or `rows[0].id`.")
        elif not name.isidentifier() or name.startswith("_"):
            findings.error(place, STEP, f"{name!r} cannot be read as a field: use letters, digits and `_`.")
        else:
            found.append(Select(path, name))
    return found


def _manifest(manifest: Fields | None, labels: Collection[str]) -> Manifest | None:
    if manifest is None:
        return None
    manifest.refuse_unknown(("as", "strategy", "path"), "`manifest`")
    name, path = manifest.text("as"), manifest.text("path")
    if name is None:
        manifest.wrong(None, "Say under which name the parts are gathered: `as`.")
        return None
    if not name.isidentifier() or name in RESERVED_NAMES or name in labels:
        manifest.wrong("as", f"{name!r} cannot be the name: it must be a word that means nothing else in the pipeline.")
    if path is not None and steps_of(path) is None:
        manifest.wrong("path", f"{path!r} is no path. Write it as `$.data.rows`.")
    return make_part(Manifest, name=name, strategy=manifest.choice("strategy", Strategy.APPEND), path=path)
