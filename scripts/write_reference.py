"""Write what is made from the catalogue: the JSON Schemas in the package and the reference page in the docs.

Run it with `make schemas` after changing the catalogue; a test tells if you forgot.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from runwright.contract import schemas
from runwright.contract.catalog import CATALOG

ROOT = Path(__file__).parents[1]
SCHEMAS = Path(schemas.__file__).parent / "json_schemas"
PAGE = ROOT / "docs" / "events.md"

HEAD = """# Events

Made from the catalogue (`contract/catalog.py`) by `make schemas`. A type that is not here is stored and shown all the
same, and never changes state.

Level: a *run* event has no `stepId`; a *step* event has the step's id; an *entity* event has a path that names
something finer than a step or beside it (`load[3]/fetch`, `signal/<signalId>`). From: the role that may append it:
whoever decides is the server, whoever runs a tool is the worker. *Drives*: while a live process owns the run, only it
may append it.

| eventType | dotted name | level | from | drives | version | what it says | payload fields |
|---|---|---|---|---|---|---|---|
"""


def files() -> dict[Path, str]:
    """Every generated file and its content."""
    documents = {SCHEMAS / name: schemas.render(document) for name, document in schemas.all_schemas().items()}
    return {**documents, PAGE: HEAD + "".join(map(_row, CATALOG))}


def _row(name: str) -> str:
    kind = CATALOG[name]
    fields = [field.encode_name for field in msgspec.structs.fields(kind.payload)]
    drives = "" if kind.from_anyone else "yes"
    cells = (
        kind.name,
        kind.dotted,
        kind.level,
        kind.role,
        drives,
        kind.schema_version,
        kind.summary,
        ", ".join(fields),
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def main() -> None:
    for old in SCHEMAS.glob("*.schema.json"):
        old.unlink()
    for path, content in files().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
