"""Write the files that are generated from the catalogue: the JSON Schemas and the reference page of the events.

Run it with `make schemas` after a change of the catalogue; a test fails if the files are out of date.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from runwright.contract import schemas
from runwright.contract.catalog import CATALOG
from runwright.contract.noetl.schema import noetl_schema

ROOT = Path(__file__).parents[1]
SCHEMAS = Path(schemas.__file__).parent / "json_schemas"
PAGE = ROOT / "docs" / "reference" / "events.md"

HEAD = """# Events

Generated from the catalogue (`contract/catalog.py`) by `make schemas`. An event of another type is stored and shown,
and never changes state.

Level: a *run* event has no `stepId`; a *step* event has the step's id; an *entity* event has a path that names a part
of a step (`load[3]/fetch`) or something outside of steps (`signal/<signalId>`). Role: the role that may append the
event. The server decides, a worker executes tools. Owner only: while a live process owns the run, only that process
may append the event.

| eventType | dotted name | level | role | owner only | version | meaning | payload fields |
|---|---|---|---|---|---|---|---|
"""


def files() -> dict[Path, str]:
    """Return the content of every generated file by path."""
    noetl = noetl_schema()
    documents = {**schemas.all_schemas(), schemas.file_name(noetl): noetl}
    rendered = {SCHEMAS / name: schemas.render(document) for name, document in documents.items()}
    return {**rendered, PAGE: HEAD + "".join(map(_row, CATALOG))}


def _row(name: str) -> str:
    kind = CATALOG[name]
    fields = [field.encode_name for field in msgspec.structs.fields(kind.payload)]
    cells = (
        kind.name,
        kind.dotted,
        kind.level,
        kind.role,
        "" if kind.from_anyone else "yes",
        kind.schema_version,
        kind.summary,
        ", ".join(fields),
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def main() -> None:
    for outdated in SCHEMAS.glob("*.schema.json"):
        outdated.unlink()
    for path, content in files().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
