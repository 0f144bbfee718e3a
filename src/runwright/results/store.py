"""Values too large for the log, each in a file that is named by its own hash."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import DEFAULT_TENANT, kept_name

_URI = re.compile(r"result:sha256:([0-9a-f]{64})", re.ASCII)
_numbers = itertools.count()


class ResultStore:
    """Keeps bytes by content. Every method may be called from any thread, and from several processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)

    def put(self, body: bytes, tenant_id: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Keep this for a tenant. Once it returns the bytes are durable; the same bytes are written only once."""
        name = hashlib.sha256(body).hexdigest()
        try:
            self._keep(kept_name(tenant_id, name), body)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise RunwrightError(
                ErrorCode.STORE_FULL if full else ErrorCode.STORE_UNAVAILABLE,
                f"A result of {len(body):,} bytes cannot be written to {self._folder}: {error.strerror}.",
            ) from error
        return {"uri": f"result:sha256:{name}", "sha256": name, "sizeBytes": len(body)}

    def get(self, ref: Mapping[str, Any], tenant_id: str = DEFAULT_TENANT) -> bytes:
        """The bytes of a tenant that a reference names. REFERENCE_NOT_AVAILABLE where they are gone or not what they
        were."""
        name = name_in(ref)
        path = self._path(kept_name(tenant_id, name))
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            raise not_available(f"The result {name[:12]}… is not in {self._folder}") from None
        except OSError as error:
            raise not_available(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(body).hexdigest() != name:
            raise not_available(f"{path} is damaged: its content has changed since it was written")
        return body

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _keep(self, name: str, body: bytes) -> None:
        path = self._path(name)
        if not _holds(path, body):
            keep_file(path, lambda file: file.write(body))
        # Also where it was there before: whoever wrote it may not have got this far yet.
        sync_folder(path.parent)


def keep_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that it is there wholly or not at all, and still there after a crash."""
    missing = [folder for folder in path.parents if not folder.is_dir()]
    if missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync_folder(folder.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{next(_numbers)}")
    try:
        with draft.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _holds(path: Path, body: bytes) -> bool:
    """Whether the file is there and whole. A damaged one is written anew."""
    try:
        return path.stat().st_size == len(body) and path.read_bytes() == body
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_in(ref: Mapping[str, Any]) -> str:
    """The hash that a reference names a value by."""
    match = _URI.fullmatch(str(ref.get("uri")))
    if match is None:
        raise not_available(f"{ref.get('uri')!r} does not name a result")
    return match[1]


def not_available(detail: str, *, passing: bool = False) -> RunwrightError:
    """`passing`: it may well be there, and its store does not answer."""
    advice = "Try again once it does" if passing else "Run the step again to make it anew"
    return RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, f"{detail}. {advice}.", passing=passing)
