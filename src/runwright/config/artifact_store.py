"""The store for artifacts that runwright.toml configures: a folder next to the log, or a bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from runwright.plans.durations import InvalidDuration, parse_duration
from runwright.plans.problems import did_you_mean
from runwright.storage.artifacts import ArtifactBackend, ArtifactStore, FolderBackend

from .settings import invalid_setting, require_extra

_BUCKET_FIELDS = ("endpoint", "region")
_FIELDS = ("store", "retention", *_BUCKET_FIELDS)


def artifact_store(settings: Mapping[str, Any], folder: Path, now: Callable[[], int]) -> ArtifactStore:
    """Create the store that `[artifacts]` configures; by default, a folder next to the log."""
    for name in settings:
        if name not in _FIELDS:
            raise invalid_setting(f"Unknown field {name!r} in [artifacts].{did_you_mean(name, _FIELDS)}")
    return ArtifactStore(_backend(settings, folder), tempfile.NamedTemporaryFile, now, _retention(settings))


def _backend(settings: Mapping[str, Any], folder: Path) -> ArtifactBackend:
    url = settings.get("store")
    if url is None:
        return FolderBackend(folder / "artifacts")
    if not isinstance(url, str):
        raise invalid_setting("[artifacts] store must be a folder or s3://bucket/prefix.")
    if "://" not in url:
        return FolderBackend(Path(url).absolute())
    if not url.startswith("s3://") or not url.removeprefix("s3://").strip("/"):
        raise invalid_setting(f"[artifacts] store must be a folder or s3://bucket/prefix, not {url!r}.")
    require_extra("obstore", "A bucket for artifacts", "s3")
    from runwright.storage.s3 import S3Backend

    return S3Backend(url, bucket_options(settings))


def bucket_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the bucket's client from a table of runwright.toml."""
    options: dict[str, Any] = {name: settings[name] for name in _BUCKET_FIELDS if name in settings}
    if str(options.get("endpoint", "")).startswith("http://"):
        options["client_options"] = {"allow_http": True}
    return options


def _retention(settings: Mapping[str, Any]) -> dict[str, float]:
    durations = settings.get("retention", {})
    if not isinstance(durations, dict):
        raise invalid_setting("[artifacts.retention] must be a table of durations by kind, such as default = '90d'.")
    retention: dict[str, float] = {}
    for kind, text in cast("dict[str, Any]", durations).items():
        try:
            retention[kind] = parse_duration(text)
        except InvalidDuration as error:
            raise invalid_setting(f"[artifacts.retention] {kind}: {error}") from None
    return retention
