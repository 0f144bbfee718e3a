"""Artifacts: files that steps produce and others read. The log holds references to them, never the bytes.

An artifact is stored under `<kind>/<day>/<SHA-256>`; the day is the first on which it may be deleted, or `kept` if it
never expires. Hence equal files are one artifact, content is verifiable at every read, and pruning needs no index, only
the names. Each tenant except the default one has a folder of its own: knowing the address of another tenant's artifact
gives no access to it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, Protocol, Self

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import DEFAULT_TENANT, ArtifactRef

NO_EXPIRY = "kept"
ANY_KIND = "default"  # retention of kinds that have none of their own
BLOCK = 1024 * 1024

_draft_numbers = itertools.count()
_KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_KEY = re.compile(
    r"(?:.*?/)??(?:tenants/([0-9a-f]{64})/)?([a-z0-9][a-z0-9._-]{0,63})/(kept|\d{4}-\d\d-\d\d)/([0-9a-f]{64})", re.ASCII
)


class ArtifactKey(msgspec.Struct, frozen=True):
    """Key of an artifact in its store."""

    kind: str
    day: str
    sha256: str
    tenant: str | None = None
    """Hash of the tenant id; None for the default tenant."""

    def __str__(self) -> str:
        folder = "" if self.tenant is None else f"tenants/{self.tenant}/"
        return f"{folder}{self.kind}/{self.day}/{self.sha256}"


def parse_artifact_key(text: str) -> ArtifactKey | None:
    """Parse the key at the end of an address or a path; None if there is none."""
    match = _KEY.fullmatch(text)
    return None if match is None else ArtifactKey(match[2], match[3], match[4], match[1])


class ArtifactBackend(Protocol):
    """Storage of the bytes. Called from any thread, and from several processes at the same time."""

    def uri(self, key: ArtifactKey) -> str: ...

    def has(self, key: ArtifactKey) -> bool:
        """Whether the artifact exists and, where that is cheap to check, is undamaged."""
        ...

    def put(self, key: ArtifactKey, file: Path) -> None:
        """Store a copy of this file. Durable on return."""
        ...

    def read(self, key: ArtifactKey) -> Iterator[bytes]:
        """Yield the content in blocks. Raises FileNotFoundError if it does not exist."""
        ...

    def list_keys(self) -> Iterator[ArtifactKey]: ...

    def delete(self, key: ArtifactKey) -> None: ...


class ArtifactStore:
    def __init__(
        self,
        backend: ArtifactBackend,
        scratch: Callable[[], IO[bytes]],
        now: Callable[[], int],
        retention: Mapping[str, float] | None = None,
    ) -> None:
        """`scratch` opens a temporary file, `retention` is in seconds by kind."""
        self._backend = backend
        self._scratch = scratch
        self._now = now
        self._retention = retention or {}
        self._tenant: str | None = None
        self._sees_all_tenants = True

    def for_tenant(self, tenant_id: str) -> Self:
        """Return the store restricted to a tenant. An unrestricted store reads the artifacts of all tenants."""
        restricted = copy(self)
        restricted._tenant = None if tenant_id == DEFAULT_TENANT else hashlib.sha256(tenant_id.encode()).hexdigest()
        restricted._sees_all_tenants = False
        return restricted

    def put(self, source: Path | bytes, kind: str) -> ArtifactRef:
        """Store a file, or bytes. Equal content of one kind is stored once."""
        if _KIND.fullmatch(kind) is None:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT,
                f"Invalid artifact kind {kind!r}: use lower-case letters, digits, `.`, `_` and `-`, such as report.",
            )
        expires = self._expiry(kind)
        with self._scratch() as draft:
            digest, size = _copy(source, draft)
            key = ArtifactKey(kind, NO_EXPIRY if expires is None else expires.isoformat(), digest, self._tenant)
            draft.flush()
            try:
                if not self._backend.has(key):
                    self._backend.put(key, Path(draft.name))
            except OSError as error:
                raise _store_unavailable(error) from error
        expires_at = None if expires is None else f"{expires.isoformat()}T00:00:00.000000Z"
        return ArtifactRef(self._backend.uri(key), kind, digest, size, expires_at)

    def get(self, ref: ArtifactRef | str, target: Path) -> int:
        """Write an artifact to a file and return its size.

        Raises REFERENCE_NOT_AVAILABLE if it does not exist, belongs to another tenant, or is damaged.
        """
        uri, key = self._readable_key(ref)
        # A name of its own, because others may fetch to the same target.
        draft = target.with_name(f".{target.name}.{os.getpid()}.{next(_draft_numbers)}")
        try:
            with draft.open("wb") as file:
                size = self._copy_verified(uri, key, file)
            draft.replace(target)
        except FileNotFoundError:
            raise _not_found(uri if target.parent.is_dir() else target.parent) from None
        except OSError as error:
            raise _store_unavailable(error) from error
        finally:
            draft.unlink(missing_ok=True)
        return size

    def open(self, ref: ArtifactRef | str) -> IO[bytes]:
        """Open an artifact to be read, as a copy that is removed when it is closed. Raises as `get` does, at once: not
        a byte of a damaged artifact is read."""
        uri, key = self._readable_key(ref)
        file = self._scratch()
        try:
            self._copy_verified(uri, key, file)
            file.seek(0)
        except FileNotFoundError:
            file.close()
            raise _not_found(uri) from None
        except OSError as error:
            file.close()
            raise _store_unavailable(error) from error
        except RunwrightError:
            file.close()
            raise
        return file

    def _readable_key(self, ref: ArtifactRef | str) -> tuple[str, ArtifactKey]:
        uri, expected = (ref, None) if isinstance(ref, str) else (ref.uri, ref.sha256)
        key = parse_artifact_key(uri)
        if key is not None and key.tenant != self._tenant and not self._sees_all_tenants:
            raise _not_found(uri)  # the same error as for an artifact that never existed, to disclose nothing
        if key is None or (expected is not None and expected != key.sha256):
            raise _not_available(f"{uri!r} is not the address of an artifact")
        return uri, key

    def _copy_verified(self, uri: str, key: ArtifactKey, file: IO[bytes]) -> int:
        """Copy an artifact into a file and return its size. Raises if its content does not match its hash."""
        digest, size = hashlib.sha256(), 0
        for block in self._backend.read(key):
            digest.update(block)
            size += file.write(block)
        if digest.hexdigest() != key.sha256:
            raise _not_available(f"The artifact {uri} is damaged: its content does not match its hash")
        return size

    def prune(self) -> list[ArtifactKey]:
        """Delete expired artifacts and return their keys."""
        today = self._today().isoformat()
        expired = [key for key in self._backend.list_keys() if key.day != NO_EXPIRY and key.day <= today]
        for key in expired:
            self._backend.delete(key)
        return expired

    def _expiry(self, kind: str) -> date | None:
        seconds = self._retention.get(kind, self._retention.get(ANY_KIND))
        if seconds is None:
            return None
        last = datetime.fromtimestamp(self._now() / 1e6, UTC) + timedelta(seconds=seconds)
        return last.date() + timedelta(days=1)  # the first full day after expiry, so never too early

    def _today(self) -> date:
        return datetime.fromtimestamp(self._now() / 1e6, UTC).date()


def _copy(source: Path | bytes, draft: IO[bytes]) -> tuple[str, int]:
    """Copy the source and return its SHA-256 and size."""
    digest = hashlib.sha256()
    if isinstance(source, bytes):
        digest.update(source)
        draft.write(source)
        return digest.hexdigest(), len(source)
    size = 0
    try:
        with source.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += draft.write(block)
    except OSError as error:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"Cannot store artifact {source}: {error.strerror or error}."
        ) from None
    return digest.hexdigest(), size


class FolderBackend:
    """Artifacts in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def uri(self, key: ArtifactKey) -> str:
        return f"{self._folder.resolve().as_uri()}/{key}"

    def has(self, key: ArtifactKey) -> bool:
        digest = hashlib.sha256()
        try:
            for block in self.read(key):
                digest.update(block)
        except FileNotFoundError:
            return False
        return digest.hexdigest() == key.sha256  # a damaged file is replaced

    def put(self, key: ArtifactKey, file: Path) -> None:
        from .file_store import write_file_atomically

        write_file_atomically(self._folder / str(key), lambda draft: _copy_content(file, draft))

    def read(self, key: ArtifactKey) -> Iterator[bytes]:
        with (self._folder / str(key)).open("rb") as file:
            while block := file.read(BLOCK):
                yield block

    def list_keys(self) -> Iterator[ArtifactKey]:
        for path in sorted([*self._folder.glob("*/*/*"), *self._folder.glob("tenants/*/*/*/*")]):
            key = parse_artifact_key(path.relative_to(self._folder).as_posix())
            if key is not None:
                yield key

    def delete(self, key: ArtifactKey) -> None:
        path = self._folder / str(key)
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[: str(key).count("/")]:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty


def _copy_content(file: Path, draft: IO[bytes]) -> None:
    with file.open("rb") as source:
        shutil.copyfileobj(source, draft, BLOCK)


def _not_found(address: str | Path) -> RunwrightError:
    return _not_available(f"{address} not found")


def _not_available(detail: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.REFERENCE_NOT_AVAILABLE,
        f"{detail}. Check whether it has expired, or rerun the step that produced it.",
    )


def _store_unavailable(error: OSError) -> RunwrightError:
    reason = error.strerror or str(error) or type(error).__name__
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, f"The artifact store is unavailable: {reason}.")
