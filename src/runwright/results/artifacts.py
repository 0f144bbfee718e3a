"""Artifacts: files that steps make and others read. The log holds references to them, never the bytes.

An artifact lies under `<kind>/<day>/<SHA-256>`: the day is the first on which it may be deleted, or `kept`. So two
steps that make the same file make one artifact, its content can be checked whenever it is read, and deleting what
has expired needs no index, only the names. Each tenant but the default one has a folder of its own for them: to name
the address of another's opens nothing.
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

KEPT = "kept"
ANY_KIND = "default"
BLOCK = 1024 * 1024

_numbers = itertools.count()
_KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_KEY = re.compile(
    r"(?:.*?/)??(?:tenants/([0-9a-f]{64})/)?([a-z0-9][a-z0-9._-]{0,63})/(kept|\d{4}-\d\d-\d\d)/([0-9a-f]{64})", re.ASCII
)


class Key(msgspec.Struct, frozen=True):
    """Where an artifact lies in its store."""

    kind: str
    day: str
    sha256: str
    tenant: str | None = None
    """Whose it is, as a hash; none: the default tenant's."""

    def __str__(self) -> str:
        folder = "" if self.tenant is None else f"tenants/{self.tenant}/"
        return f"{folder}{self.kind}/{self.day}/{self.sha256}"


def read_key(text: str) -> Key | None:
    """The key that an address or a path ends in."""
    match = _KEY.fullmatch(text)
    return None if match is None else Key(match[2], match[3], match[4], match[1])


class Shelf(Protocol):
    """Where the bytes are. Any thread may call it, and several processes at once."""

    def uri(self, key: Key) -> str: ...

    def has(self, key: Key) -> bool:
        """Whether it is there, and where that costs little also whether it is whole."""
        ...

    def put(self, key: Key, file: Path) -> None:
        """Keep this file. Once it returns it is durable."""
        ...

    def read(self, key: Key) -> Iterator[bytes]:
        """Its bytes. FileNotFoundError where it is gone."""
        ...

    def all(self) -> Iterator[Key]: ...

    def delete(self, key: Key) -> None: ...


class ArtifactStore:
    def __init__(
        self,
        shelf: Shelf,
        scratch: Callable[[], IO[bytes]],
        now: Callable[[], int],
        retention: Mapping[str, float] | None = None,
    ) -> None:
        """`scratch` opens a file for something that is on its way, `retention` is in seconds, by kind."""
        self._shelf = shelf
        self._scratch = scratch
        self._now = now
        self._retention = retention or {}
        self._tenant: str | None = None
        self._is_whole = True

    def of(self, tenant_id: str) -> Self:
        """The store as a tenant sees it. As it is, it gives out what is anybody's."""
        seen = copy(self)
        seen._tenant = None if tenant_id == DEFAULT_TENANT else hashlib.sha256(tenant_id.encode()).hexdigest()
        seen._is_whole = False
        return seen

    def put(self, source: Path | bytes, kind: str) -> ArtifactRef:
        """Keep a file, or bytes. The same again costs nothing."""
        if _KIND.fullmatch(kind) is None:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT,
                f"{kind!r} cannot be the kind of an artifact: small letters, digits, `.`, `_` and `-`, such as report.",
            )
        expires = self._expires(kind)
        with self._scratch() as draft:
            digest, size = _copy(source, draft)
            key = Key(kind, KEPT if expires is None else expires.isoformat(), digest, self._tenant)
            draft.flush()
            try:
                if not self._shelf.has(key):
                    self._shelf.put(key, Path(draft.name))
            except OSError as error:
                raise _unreachable(error) from error
        until = None if expires is None else f"{expires.isoformat()}T00:00:00.000000Z"
        return ArtifactRef(self._shelf.uri(key), kind, digest, size, until)

    def get(self, ref: ArtifactRef | str, target: Path) -> int:
        """Write an artifact to a file, and give back its size. What has changed since it was made is refused."""
        uri, wanted = (ref, None) if isinstance(ref, str) else (ref.uri, ref.sha256)
        key = read_key(uri)
        if key is not None and key.tenant != self._tenant and not self._is_whole:
            raise _gone(f"{uri} is not there")  # in the words for what never was
        if key is None or (wanted is not None and wanted != key.sha256):
            raise _gone(f"{uri!r} is not the address of an artifact")
        draft = target.with_name(f".{target.name}.{os.getpid()}.{next(_numbers)}")  # others may fetch to it as well
        digest, size = hashlib.sha256(), 0
        try:
            with draft.open("wb") as file:
                for block in self._shelf.read(key):
                    digest.update(block)
                    size += file.write(block)
            if digest.hexdigest() != key.sha256:
                raise _gone(f"The artifact {uri} is damaged: its content has changed since it was made")
            draft.replace(target)
        except FileNotFoundError:
            missing = target.parent if not target.parent.is_dir() else uri
            raise _gone(f"{missing} is not there") from None
        except OSError as error:
            raise _unreachable(error) from error
        finally:
            draft.unlink(missing_ok=True)
        return size

    def prune(self) -> list[Key]:
        """Delete what has expired, and say what that was."""
        today = self._today().isoformat()
        expired = [key for key in self._shelf.all() if key.day != KEPT and key.day <= today]
        for key in expired:
            self._shelf.delete(key)
        return expired

    def _expires(self, kind: str) -> date | None:
        seconds = self._retention.get(kind, self._retention.get(ANY_KIND))
        if seconds is None:
            return None
        last = datetime.fromtimestamp(self._now() / 1e6, UTC) + timedelta(seconds=seconds)
        return last.date() + timedelta(days=1)  # never sooner than was said

    def _today(self) -> date:
        return datetime.fromtimestamp(self._now() / 1e6, UTC).date()


def _copy(source: Path | bytes, draft: IO[bytes]) -> tuple[str, int]:
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
            ErrorCode.INVALID_ARGUMENT, f"{source} cannot be kept: {error.strerror or error}."
        ) from None
    return digest.hexdigest(), size


class Folder:
    """Artifacts in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def uri(self, key: Key) -> str:
        return f"{self._folder.resolve().as_uri()}/{key}"

    def has(self, key: Key) -> bool:
        digest = hashlib.sha256()
        try:
            for block in self.read(key):
                digest.update(block)
        except FileNotFoundError:
            return False
        return digest.hexdigest() == key.sha256  # a damaged one is made anew

    def put(self, key: Key, file: Path) -> None:
        from .store import keep_file

        keep_file(self._folder / str(key), lambda draft: _into(file, draft))

    def read(self, key: Key) -> Iterator[bytes]:
        with (self._folder / str(key)).open("rb") as file:
            while block := file.read(BLOCK):
                yield block

    def all(self) -> Iterator[Key]:
        for path in sorted([*self._folder.glob("*/*/*"), *self._folder.glob("tenants/*/*/*/*")]):
            key = read_key(path.relative_to(self._folder).as_posix())
            if key is not None:
                yield key

    def delete(self, key: Key) -> None:
        path = self._folder / str(key)
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[: str(key).count("/")]:
            try:
                folder.rmdir()
            except OSError:
                return  # there is more in it


def _into(file: Path, draft: IO[bytes]) -> None:
    with file.open("rb") as source:
        shutil.copyfileobj(source, draft, BLOCK)


def _gone(detail: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.REFERENCE_NOT_AVAILABLE, f"{detail}. Run the step that made it again, or look whether it has expired."
    )


def _unreachable(error: OSError) -> RunwrightError:
    why = error.strerror or str(error) or type(error).__name__
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, f"The store for artifacts does not answer: {why}.")
