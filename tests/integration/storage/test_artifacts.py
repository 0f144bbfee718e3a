"""Artifacts in a folder and in a real bucket: stored by content, verified on read, deleted after retention."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.config.artifact_store import artifact_store
from runwright.contract.errors import RunwrightError
from runwright.contract.refs import ArtifactRef
from runwright.storage.artifacts import ArtifactKey, ArtifactStore, FolderBackend, parse_artifact_key

DAY = 86_400_000_000
NOW = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1e6)


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    retention = {"retention": {"report": "2d", "default": "30d", "forever": "36500d"}}
    if request.param == "folder":
        return retention
    return {**retention, **request.getfixturevalue("bucket")}


@pytest.fixture
def store(settings: dict[str, Any], tmp_path: Path, clock: Clock) -> ArtifactStore:
    return artifact_store(settings, tmp_path / "state", clock.now)


def test_a_stored_artifact_can_be_fetched(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_bytes(b"<h1>" + bytes(3_000_000))
    ref = store.put(tmp_path / "report.html", "report")
    assert (ref.kind, ref.size_bytes) == ("report", 3_000_004)
    assert store.get(ref, tmp_path / "copy") == 3_000_004
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "report.html").read_bytes()
    assert store.get(ref.uri, tmp_path / "copy") == 3_000_004
    assert not list(tmp_path.glob(".copy*"))


def test_equal_content_and_kind_give_the_same_artifact(store: ArtifactStore) -> None:
    assert store.put(b"same", "report") == store.put(b"same", "report")
    assert store.put(b"same", "report") != store.put(b"same", "other")
    assert store.put(b"", "report").size_bytes == 0


def test_artifacts_are_scoped_to_a_tenant(store: ArtifactStore, tmp_path: Path, clock: Clock) -> None:
    default, acme, other = (store.for_tenant(tenant) for tenant in ("default", "acme", "other"))
    refs = [tenant_store.put(b"the same bytes", "report") for tenant_store in (default, acme)]
    assert len({ref.uri for ref in refs}) == 2
    for ref, owner in zip(refs, (default, acme), strict=True):
        assert owner.get(ref, tmp_path / "copy") == 14
        assert store.get(ref, tmp_path / "copy") == 14  # The unscoped store reads the artifacts of all tenants.
        for stranger in {default, acme, other} - {owner}:
            with pytest.raises(RunwrightError, match="not found") as refused:
                stranger.get(ref.uri, tmp_path / "stolen")
            assert refused.value.code == "REFERENCE_NOT_AVAILABLE"
    assert not (tmp_path / "stolen").exists()
    clock.time += 4 * DAY
    assert {str(key) for key in store.prune()} == {str(key_of(ref)) for ref in refs}


def test_a_changed_artifact_is_not_returned(store: ArtifactStore, settings: dict[str, Any], tmp_path: Path) -> None:
    ref = store.put(b"as it was", "report")
    store._backend.put(key_of(ref), _file(tmp_path, b"as it was not"))
    with pytest.raises(RunwrightError, match="is damaged"):
        store.get(ref, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_damaged_artifact_is_repaired_by_storing_it_again(tmp_path: Path, clock: Clock) -> None:
    store = artifact_store({}, tmp_path, clock.now)
    ref = store.put(b"as it was", "report")
    store._backend.put(key_of(ref), _file(tmp_path, b"as it was not"))
    assert store.put(b"as it was", "report") == ref
    assert store.get(ref, tmp_path / "copy") == 9


def test_concurrent_fetches_to_one_path_do_not_mix(store: ArtifactStore, tmp_path: Path) -> None:
    refs = [store.put(bytes([number]) * 300_000, "report") for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda number: store.get(refs[number % 4], tmp_path / "copy"), range(24)))
    assert set(sizes) == {300_000}
    assert len(set((tmp_path / "copy").read_bytes())) == 1


def test_missing_or_invalid_artifact_address_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    ref = store.put(b"x", "report")
    store._backend.delete(key_of(ref))
    with pytest.raises(RunwrightError) as missing:
        store.get(ref, tmp_path / "copy")
    assert missing.value.code == "REFERENCE_NOT_AVAILABLE"
    for uri in ("file:///etc/passwd", "s3://other/x", "../../etc/passwd", f"report/kept/{'g' * 64}"):
        with pytest.raises(RunwrightError, match="not the address of an artifact"):
            store.get(uri, tmp_path / "copy")
    other = ArtifactRef(ref.uri, "report", "0" * 64)
    with pytest.raises(RunwrightError, match="not the address of an artifact"):
        store.get(other, tmp_path / "copy")


def test_each_kind_has_its_own_retention(store: ArtifactStore, clock: Clock, tmp_path: Path) -> None:
    short, usual = store.put(b"a", "report"), store.put(b"b", "log")
    assert (short.expires_at, usual.expires_at) == ("2026-01-04T00:00:00.000000Z", "2026-02-01T00:00:00.000000Z")
    assert store.prune() == []
    clock.time = NOW + 2 * DAY
    assert store.prune() == [], "never before the expiry time"
    clock.time = NOW + 3 * DAY
    assert [key.kind for key in store.prune()] == ["report"]
    with pytest.raises(RunwrightError):
        store.get(short, tmp_path / "copy")
    assert store.get(usual, tmp_path / "copy") == 1
    clock.time = NOW + 40 * DAY
    assert [key.kind for key in store.prune()] == ["log"]


def test_artifacts_without_retention_never_expire(tmp_path: Path, clock: Clock) -> None:
    store = artifact_store({}, tmp_path, clock.now)
    ref = store.put(b"x", "report")
    assert ref.expires_at is None
    clock.time += 100_000 * DAY
    assert store.prune() == []


@pytest.mark.parametrize("kind", ["", "Report", "../x", "a/b", "x" * 65, "ä", "a\n"])
def test_an_invalid_artifact_kind_is_refused(kind: str, tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(RunwrightError, match="Invalid artifact kind"):
        artifact_store({}, tmp_path, clock.now).put(b"x", kind)


def test_put_refuses_missing_files_and_directories(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(RunwrightError, match="No such file"):
        artifact_store({}, tmp_path, clock.now).put(tmp_path / "nothing", "report")
    with pytest.raises(RunwrightError, match="directory"):
        artifact_store({}, tmp_path, clock.now).put(tmp_path, "report")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stor": "x"}, "'stor' in .artifacts.. Did you mean 'store'"),
        ({"store": 7}, "store must be a folder"),
        ({"store": "gopher://x"}, "not 'gopher://x'"),
        ({"store": "s3://"}, "not 's3://'"),
        ({"retention": "90d"}, "must be a table"),
        ({"retention": {"report": "soon"}}, "report: A duration"),
    ],
)
def test_an_invalid_artifact_setting_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RunwrightError, match=message):
        artifact_store(settings, tmp_path, lambda: NOW)


def test_unreachable_bucket_raises_store_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    settings = {"store": "s3://nobody/here", "endpoint": "http://127.0.0.1:9", "region": "us-east-1"}
    store = artifact_store(settings, tmp_path, lambda: NOW)
    with pytest.raises(RunwrightError) as caught:
        store.put(b"x", "report")
    assert caught.value.code == "STORE_UNAVAILABLE"


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True), st.dates(), st.binary(min_size=32, max_size=32))
def test_artifact_keys_survive_a_round_trip(kind: str, day: Any, digest: bytes) -> None:
    for key in (
        ArtifactKey(kind, day.isoformat(), digest.hex()),
        ArtifactKey(kind, day.isoformat(), digest.hex(), digest[::-1].hex()),
    ):
        assert parse_artifact_key(f"s3://bucket/some/prefix/{key}") == parse_artifact_key(str(key)) == key


def test_folder_is_empty_after_all_artifacts_are_pruned(tmp_path: Path, clock: Clock) -> None:
    store = ArtifactStore(FolderBackend(tmp_path / "a"), tempfile.NamedTemporaryFile, clock.now, {"x": 1})
    store.put(b"1", "x")
    store.for_tenant("acme").put(b"1", "x")
    clock.time += int(timedelta(days=3).total_seconds() * 1e6)
    assert len(store.prune()) == 2
    assert list((tmp_path / "a").iterdir()) == []


def key_of(ref: ArtifactRef) -> ArtifactKey:
    key = parse_artifact_key(ref.uri)
    assert key is not None
    return key


def _file(folder: Path, body: bytes) -> Path:
    path = folder / "damaged"
    path.write_bytes(body)
    return path
