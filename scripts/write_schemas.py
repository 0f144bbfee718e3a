"""Write the JSON Schemas of the catalogue into the package. Run it after changing the catalogue."""

from pathlib import Path

import runwright.contract.schemas as schemas

folder = Path(schemas.__file__).parent / "json_schemas"
for old in folder.glob("*.schema.json"):
    old.unlink()
for name, document in schemas.all_schemas().items():
    (folder / name).write_text(schemas.render(document))
