"""Content-addressed files: values too large for the log, each in a file named by its SHA-256."""

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
from runwright.contract.refs import DEFAULT_TENANT, tenant_scoped_name

from .private_files import make_private_folder, open_private

_URI = re.compile(r"result:sha256:([0-9a-f]{64})", re.ASCII)
_draft_numbers = itertools.count()


class FileStore:
    """Values in files, by content. Callable from any thread, and from several processes at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)

    def put(self, body: bytes, tenant_id: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Store bytes for a tenant and return their reference. Durable on return; equal bytes are written only once."""
        digest = hashlib.sha256(body).hexdigest()
        try:
            self._write(tenant_scoped_name(tenant_id, digest), body)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise RunwrightError(
                ErrorCode.STORE_FULL if is_full else ErrorCode.STORE_UNAVAILABLE,
                f"Cannot write a result of {len(body):,} bytes to {self._folder}: {error.strerror}.",
            ) from error
        return {"uri": f"result:sha256:{digest}", "sha256": digest, "sizeBytes": len(body)}

    def get(self, ref: Mapping[str, Any], tenant_id: str = DEFAULT_TENANT) -> bytes:
        """Return the bytes of a tenant's reference. Raises REFERENCE_NOT_AVAILABLE if they are missing or damaged."""
        digest = ref_digest(ref)
        path = self._path(tenant_scoped_name(tenant_id, digest))
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            raise reference_not_available(f"Result {digest[:12]}… not found in {self._folder}") from None
        except OSError as error:
            raise reference_not_available(f"Cannot read {path}: {error.strerror}") from error
        if hashlib.sha256(body).hexdigest() != digest:
            raise reference_not_available(f"{path} is damaged: its content does not match its hash")
        return body

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _write(self, name: str, body: bytes) -> None:
        path = self._path(name)
        if not _has_content(path, body):
            write_file_atomically(path, lambda file: file.write(body))
        # Also if the file existed: the process that wrote it may not have synced the folder yet.
        sync_folder(path.parent)


def write_file_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file completely or not at all, through a draft and a rename. Durable on return."""
    for folder in make_private_folder(path.parent):
        sync_folder(folder.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{next(_draft_numbers)}")
    try:
        with open_private(draft, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _has_content(path: Path, body: bytes) -> bool:
    """Whether the file exists and is undamaged. A damaged file is written again."""
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


def ref_digest(ref: Mapping[str, Any]) -> str:
    """Return the SHA-256 in the URI of a reference."""
    match = _URI.fullmatch(str(ref.get("uri")))
    if match is None:
        raise reference_not_available(f"{ref.get('uri')!r} is not the URI of a result")
    return match[1]


def reference_not_available(detail: str, *, temporary: bool = False) -> RunwrightError:
    """Create the error of a reference that cannot be read. `temporary`: its store is unavailable, retrying may help."""
    advice = "Retry later" if temporary else "Rerun the step to produce it again"
    return RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, f"{detail}. {advice}.", passing=temporary)
