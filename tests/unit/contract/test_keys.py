"""The idempotency key: the formula of RunEvents v2.0.1, checked against an independent program."""

from __future__ import annotations

import json
import shutil
import subprocess
import unicodedata
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.contract.keys import key_bytes, preimage

VECTORS: list[dict[str, Any]] = json.loads(
    (resources.files("runwright.contract") / "RunEvents.v2.0.1.idempotency_vectors.json").read_bytes()
)
BY_NAME = {vector["name"].split("-", 2)[2]: vector for vector in VECTORS}

SEED_DIGESTS = {
    "vector-1-step-started": "7f4b974658a54fb2aee9ecb9cefebd2eec27f3fd01f0f8c0d031dfc4a5b96e3c",
    "vector-2-run-started": "204197f81e5dc1a8491d8e411c440a730c51a741cd48a74863d3e5c4c452640d",
    "vector-3-step-failed-attempt-2": "599945c1a8023ece5d2ae5132a4397b8cfbe9fa1c4c08d6fc4193a9bd9a2ebcd",
    "vector-4-run-failed-plan-v3": "b5a178e6f30962ca3d17b573c0d4c5f96d7623be5fe62a972644785fc05a003b",
    "vector-5-step-skipped-customers-v1": "6bfdbe26d62eac0c00cf2683aae31115e76e4d33d515e39957627be091367b31",
}


def fields(vector: dict[str, Any]) -> tuple[str, str | None, int, str, str, str]:
    return (
        vector["runId"],
        vector.get("stepId"),
        vector["logicalAttemptId"],
        vector["eventType"],
        vector["planId"],
        vector["planVersion"],
    )


def sha256_of(data: bytes) -> str:
    """Compute the digest with the program of the operating system."""
    program = ["sha256sum"] if shutil.which("sha256sum") else ["shasum", "-a", "256"]
    if shutil.which(program[0]) is None:
        pytest.skip("neither sha256sum nor shasum is installed")
    return subprocess.run(program, input=data, capture_output=True, check=True).stdout.split()[0].decode()


each_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])


@each_vector
def test_an_independent_program_confirms_each_vector(vector: dict[str, Any]) -> None:
    assert sha256_of(vector["preimage"].encode("utf-8")) == vector["expectedSha256Hex"]


@each_vector
def test_key_and_preimage_match_the_golden_vector(vector: dict[str, Any]) -> None:
    assert preimage(*fields(vector)) == vector["preimage"]
    assert rw.idempotency_key(*fields(vector)) == vector["expectedSha256Hex"]
    assert key_bytes(*fields(vector)) == bytes.fromhex(vector["expectedSha256Hex"])


@each_vector
def test_a_golden_preimage_joins_six_fields_with_bars(vector: dict[str, Any]) -> None:
    run_id, step_id, attempt, *rest = fields(vector)
    assert vector["stepIdNormalized"] == ("RUN" if step_id is None else step_id)
    assert vector["preimage"].split("|") == [run_id, vector["stepIdNormalized"], str(attempt), *rest]


@each_vector
async def test_the_log_accepts_an_event_with_the_golden_key(vector: dict[str, Any]) -> None:
    """Every vector can be appended: none of them needs an id that the envelope would refuse."""
    run_id, step_id, attempt, event_type, plan_id, plan_version = fields(vector)
    run = rw.new_run(run_id, plan_id, plan_version)
    event = rw.new_event(event_type, run, step_id=step_id, attempt=attempt)
    async with rw.open_log("memory://") as log:
        await log.create_run(run, [event], enforcement=rw.Enforcement.OBSERVE)
        (record,) = await log.read(run_id)
    assert record.idempotency_key == vector["expectedSha256Hex"]
    assert (record.step_id, record.plan_id, record.plan_version) == (step_id, plan_id, plan_version)


@each_vector
def test_scope_and_engine_attempt_do_not_affect_the_key(vector: dict[str, Any]) -> None:
    run_id, step_id, attempt, event_type, plan_id, plan_version = fields(vector)
    for context in ({}, {"tenant_id": "t"}, {"project_id": "p"}, {"environment_id": "e"}):
        run = rw.new_run(run_id, plan_id, plan_version, **context)
        for engine_attempt in (1, 2, 77):
            event = rw.new_event(
                event_type,
                run,
                step_id=step_id,
                attempt=attempt,
                engine_attempt=engine_attempt,
                payload={"n": engine_attempt},
                emitted_by="worker",
            )
            assert event.idempotency_key == vector["expectedSha256Hex"]


def test_the_five_original_vectors_are_first_and_unchanged() -> None:
    assert {vector["name"]: vector["expectedSha256Hex"] for vector in VECTORS[:5]} == SEED_DIGESTS
    assert len(VECTORS) >= 15
    assert [vector["name"].split("-")[1] for vector in VECTORS] == [str(n) for n in range(1, len(VECTORS) + 1)]


def test_the_vectors_cover_the_cases_of_the_contract() -> None:
    assert {vector["stepIdNormalized"] == "RUN" for vector in VECTORS} == {True, False}
    assert {vector["logicalAttemptId"] for vector in VECTORS} >= {1, 2, 10}
    assert len({vector["planVersion"] for vector in VECTORS}) > 3
    assert len({vector["expectedSha256Hex"] for vector in VECTORS}) == len(VECTORS)


def test_text_is_hashed_without_normalising_or_trimming() -> None:
    composed, decomposed = BY_NAME["composed-character"], BY_NAME["decomposed-character"]
    assert composed["stepId"] != decomposed["stepId"]
    assert unicodedata.normalize("NFC", decomposed["stepId"]) == composed["stepId"]
    assert composed["expectedSha256Hex"] != decomposed["expectedSha256Hex"]
    spaced = fields(BY_NAME["spaces-are-kept"])
    trimmed = tuple(part.strip() if isinstance(part, str) else part for part in spaced)
    assert rw.idempotency_key(*spaced) != rw.idempotency_key(*trimmed)  # type: ignore[arg-type]


def test_a_step_named_run_has_the_key_of_a_run_level_event() -> None:
    """The formula implies this; it is why run-level types never have a stepId, and step-level types always do."""
    *_, event_type, plan_id, plan_version = fields(BY_NAME["step-called-run"])
    run_id = BY_NAME["step-called-run"]["runId"]
    assert rw.idempotency_key(run_id, None, 1, event_type, plan_id, plan_version) == rw.idempotency_key(
        run_id, "RUN", 1, event_type, plan_id, plan_version
    )


no_bar = st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(no_bar, st.none() | no_bar, st.integers(1, 2**31 - 1), no_bar, no_bar, no_bar)
def test_a_preimage_can_be_split_into_its_six_fields(
    run_id: str, step_id: str | None, attempt: int, event_type: str, plan_id: str, plan_version: str
) -> None:
    """Events with different fields have different preimages, because the separator is refused in fields."""
    text = preimage(run_id, step_id, attempt, event_type, plan_id, plan_version)
    assert text.split("|") == [run_id, step_id or "RUN", str(attempt), event_type, plan_id, plan_version]
