"""Artifacts in a bucket: anything that speaks S3."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .artifacts import BLOCK, Key, read_key

if TYPE_CHECKING:
    from obstore.store import S3Store


def open_bucket(url: str, options: Mapping[str, Any]) -> S3Store:
    from obstore.store import S3Store

    parts = urlsplit(url)
    return S3Store(parts.netloc, prefix=parts.path.strip("/") or None, **options)


class Bucket:
    """`s3://bucket/prefix`. Credentials come from where S3 clients look for them: AWS_ACCESS_KEY_ID and its kin."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        self._store = open_bucket(url, options)

    def uri(self, key: Key) -> str:
        return f"{self._url}/{key}"

    def has(self, key: Key) -> bool:
        with bucket_troubles():
            try:
                self._store.head(str(key))
            except FileNotFoundError:
                return False
            return True

    def put(self, key: Key, file: Path) -> None:
        with bucket_troubles():
            self._store.put(str(key), file)

    def read(self, key: Key) -> Iterator[bytes]:
        with bucket_troubles():
            for block in self._store.get(str(key)).stream(min_chunk_size=BLOCK):
                yield bytes(block)

    def all(self) -> Iterator[Key]:
        with bucket_troubles():
            pages: Any = self._store.list()  # pyright: ignore[reportUnknownMemberType]
            for page in pages:
                for found in page:
                    if (key := read_key(found["path"])) is not None:
                        yield key

    def delete(self, key: Key) -> None:
        with bucket_troubles():
            self._store.delete(str(key))


@contextmanager
def bucket_troubles() -> Generator[None]:
    """What the client raises, as an OSError, like a disk's troubles."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise
    except BaseError as error:
        raise OSError(str(error).strip().partition("\n")[0]) from error
