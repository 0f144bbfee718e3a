"""The store for artifacts that runwright.toml names: a folder beside the log, or a bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.durations import NoDuration, read_duration
from runwright.plans.problems import did_you_mean
from runwright.results.artifacts import ArtifactStore, Folder, Shelf

_BUCKET = ("endpoint", "region")
_KNOWN = ("store", "retention", *_BUCKET)


def artifact_store(settings: Mapping[str, Any], folder: Path, now: Callable[[], int]) -> ArtifactStore:
    """What `[artifacts]` says; a folder beside the log where it says nothing."""
    for name in settings:
        if name not in _KNOWN:
            raise _refused(f"[artifacts] has no {name!r}.{did_you_mean(name, _KNOWN)}")
    return ArtifactStore(_shelf(settings, folder), tempfile.NamedTemporaryFile, now, _retention(settings))


def _shelf(settings: Mapping[str, Any], folder: Path) -> Shelf:
    url = settings.get("store")
    if url is None:
        return Folder(folder / "artifacts")
    if not isinstance(url, str):
        raise _refused("[artifacts] store is a folder, or s3://bucket/prefix.")
    if "://" not in url:
        return Folder(Path(url).absolute())
    if not url.startswith("s3://") or not url.removeprefix("s3://").strip("/"):
        raise _refused(f"[artifacts] store is a folder, or s3://bucket/prefix; {url!r} is neither.")
    if find_spec("obstore") is None:
        raise _refused("A bucket for artifacts needs `runwright[s3]`. Install it.")
    from runwright.results.bucket import Bucket

    return Bucket(url, bucket_options(settings))


def bucket_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a table of runwright.toml says of a bucket, as its client takes it."""
    options: dict[str, Any] = {name: settings[name] for name in _BUCKET if name in settings}
    if str(options.get("endpoint", "")).startswith("http://"):
        options["client_options"] = {"allow_http": True}
    return options


def _retention(settings: Mapping[str, Any]) -> dict[str, float]:
    given = settings.get("retention", {})
    if not isinstance(given, dict):
        raise _refused("[artifacts.retention] is a table: kind = how long, such as default = '90d'.")
    retention: dict[str, float] = {}
    for kind, text in cast("dict[str, Any]", given).items():
        try:
            retention[kind] = read_duration(text)
        except NoDuration as error:
            raise _refused(f"[artifacts.retention] {kind}: {error}") from None
    return retention


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: {sentence}")
