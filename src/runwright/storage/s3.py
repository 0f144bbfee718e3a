"""Artifacts in an S3 bucket, of any provider with an S3 API."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .artifacts import BLOCK, ArtifactKey, parse_artifact_key

if TYPE_CHECKING:
    from obstore.store import S3Store


def open_s3_store(url: str, options: Mapping[str, Any]) -> S3Store:
    from obstore.store import S3Store

    parts = urlsplit(url)
    return S3Store(parts.netloc, prefix=parts.path.strip("/") or None, **options)


class S3Backend:
    """`s3://bucket/prefix`. Credentials come from the usual variables of S3 clients, such as AWS_ACCESS_KEY_ID."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        self._store = open_s3_store(url, options)

    def uri(self, key: ArtifactKey) -> str:
        return f"{self._url}/{key}"

    def has(self, key: ArtifactKey) -> bool:
        with translate_s3_errors():
            try:
                self._store.head(str(key))
            except FileNotFoundError:
                return False
            return True

    def put(self, key: ArtifactKey, file: Path) -> None:
        with translate_s3_errors():
            self._store.put(str(key), file)

    def read(self, key: ArtifactKey) -> Iterator[bytes]:
        with translate_s3_errors():
            for block in self._store.get(str(key)).stream(min_chunk_size=BLOCK):
                yield bytes(block)

    def list_keys(self) -> Iterator[ArtifactKey]:
        with translate_s3_errors():
            pages: Any = self._store.list()  # pyright: ignore[reportUnknownMemberType]
            for page in pages:
                for found in page:
                    if (key := parse_artifact_key(found["path"])) is not None:
                        yield key

    def delete(self, key: ArtifactKey) -> None:
        with translate_s3_errors():
            self._store.delete(str(key))


@contextmanager
def translate_s3_errors() -> Generator[None]:
    """Raise errors of the S3 client as OSError, as a file system would."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise
    except BaseError as error:
        raise OSError(str(error).strip().partition("\n")[0]) from error
