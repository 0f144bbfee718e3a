"""The JSON Schemas in the package: up to date, valid, and consistent with the code."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import jsonschema
import msgspec
import pytest

import runwright.contract.schemas as schemas
from runwright.contract.catalog import CATALOG, Level
from runwright.log.factory import open_log
from support.events import History
from support.paths import ROOT

FOLDER = Path(schemas.__file__).parent / "json_schemas"


def test_the_generated_files_match_the_catalogue() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_reference.py"))
    expected: dict[Path, str] = script["files"]()
    assert {path for path in expected if path.parent == FOLDER} == set(FOLDER.iterdir())
    for path, content in expected.items():
        assert path.read_text() == content, "run `make schemas`"


def test_every_file_is_a_schema_of_the_2020_12_dialect() -> None:
    for path in FOLDER.iterdir():
        document = json.loads(path.read_text())
        assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        jsonschema.Draft202012Validator.check_schema(document)


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_the_schema_of_each_type_accepts_only_valid_events(name: str, event: History) -> None:
    step_id = None if CATALOG[name].level is Level.RUN else "a"
    document = json.loads(msgspec.json.encode(event(name, step_id)))
    validator = jsonschema.Draft202012Validator(json.loads((FOLDER / f"{name}.schema.json").read_text()))
    validator.validate(document)
    validator.validate({**document, "payload": {"somethingMore": 1}})
    validator.validate({**dict.fromkeys(("schemaVersion", "emittedBy", "traceparent", "payload")), **document})
    for broken in (
        {**document, "extra": 1},
        {**document, "payload": []},
        {**document, "eventId": "01234567-89ab-cdef-0123-456789abcdef"},
        {**document, "logicalAttemptId": 0},
        {name: value for name, value in document.items() if name != "tenantId"},
        {**document, "eventType": "SomethingElse"},
    ):
        assert not validator.is_valid(broken)


async def test_stored_records_match_the_record_schema(event: History) -> None:
    validator = jsonschema.Draft202012Validator(schemas.record_schema())
    async with open_log("memory://") as log:
        await log.append([*event.started(), event("StepStarted", "a"), event("StepFailed", "a", error={"code": "X"})])
        for record in await log.read("run-1"):
            validator.validate(json.loads(msgspec.json.encode(record)))
