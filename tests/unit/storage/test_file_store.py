"""Storage of large values under the hash of their content."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.storage.file_store import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "deep" / "results")


def files(store: FileStore) -> list[Path]:
    return [path for path in store._folder.rglob("*") if path.is_file()]


def test_a_stored_value_is_loaded_by_its_reference(store: FileStore) -> None:
    ref = store.put(b'{"rows": 3}')
    digest = hashlib.sha256(b'{"rows": 3}').hexdigest()
    assert ref == {"uri": f"result:sha256:{digest}", "sha256": digest, "sizeBytes": 11}
    assert store.get(ref) == b'{"rows": 3}'
    assert FileStore(store._folder).get({"uri": ref["uri"]}) == b'{"rows": 3}'


def test_the_same_content_is_written_once(store: FileStore) -> None:
    store.put(b"a" * 1000)
    (file,) = files(store)
    written = file.stat().st_mtime_ns
    assert store.put(b"a" * 1000) == store.put(b"a" * 1000)
    assert files(store) == [file]
    assert file.stat().st_mtime_ns == written


def test_a_deleted_result_is_reported_as_not_available(store: FileStore) -> None:
    ref = store.put(b"body")
    files(store)[0].unlink()
    with pytest.raises(rw.RunwrightError, match="not found in") as caught:
        store.get(ref)
    assert caught.value.code == "REFERENCE_NOT_AVAILABLE"


def test_a_damaged_result_is_refused_until_it_is_stored_again(store: FileStore) -> None:
    ref = store.put(b"body")
    files(store)[0].write_bytes(b"Body")
    with pytest.raises(rw.RunwrightError, match="damaged") as caught:
        store.get(ref)
    assert caught.value.code == "REFERENCE_NOT_AVAILABLE"
    store.put(b"body")
    assert store.get(ref) == b"body"


@pytest.mark.parametrize(
    "uri", [None, "", "result:sha256:../../etc/passwd", "result:sha256:" + "A" * 64, "file:///etc/passwd", 5]
)
def test_an_invalid_reference_is_refused(store: FileStore, uri: Any) -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        store.get({"uri": uri})
    assert caught.value.code == "REFERENCE_NOT_AVAILABLE"


def test_a_full_disk_is_reported_and_leaves_no_file(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.put(b"earlier")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(rw.RunwrightError) as caught:
        store.put(b"body")
    assert caught.value.code == "STORE_FULL"
    assert len(files(store)) == 1


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(rw.RunwrightError) as caught:
        FileStore(tmp_path / "file").put(b"body")
    assert caught.value.code == "STORE_UNAVAILABLE"


def test_threads_can_store_equal_and_different_values(store: FileStore) -> None:
    bodies = [str(number % 10).encode() * 5000 for number in range(80)]
    refs: list[Any] = []
    threads = [threading.Thread(target=lambda body=body: refs.append((body, store.put(body)))) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refs) == 80
    assert all(store.get(ref) == body for body, ref in refs)
    assert len(files(store)) == 10
