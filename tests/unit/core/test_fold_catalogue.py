"""The docstring of `runwright.core.fold` names, for every event type, exactly the modules that fold it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping

import pytest

from runwright.contract.catalog import CATALOG
from runwright.contract.transitions import RUN_TRANSITIONS, STEP_TRANSITIONS
from runwright.core import fold
from runwright.core.fold import evolve

_ROW = re.compile(r"([A-Z]\w+) {2,}(-|\w+(?:, \w+)*)")


def documented_modules() -> dict[str, tuple[str, ...]]:
    rows = [row for line in (fold.__doc__ or "").splitlines() if (row := _ROW.fullmatch(line))]
    table = {row[1]: () if row[2] == "-" else tuple(row[2].split(", ")) for row in rows}
    assert len(table) == len(rows), "an event type has two rows"
    return table


def dispatch_tables() -> dict[str, Mapping[str, object]]:
    names = [module.name for module in pkgutil.iter_modules(fold.__path__)]
    modules = {name: importlib.import_module(f"{fold.__name__}.{name}") for name in names}
    tables = {name: module.HANDLERS for name, module in modules.items() if hasattr(module, "HANDLERS")}
    return {**tables, "evolve": {**evolve.HANDLERS, **STEP_TRANSITIONS}}


@pytest.mark.parametrize("event_type", CATALOG)
def test_documented_modules_are_those_with_a_handler(event_type: str) -> None:
    table = documented_modules()
    assert event_type in table, f"{event_type} is missing from the table in core/fold/__init__.py"
    folded_by = {name for name, handlers in dispatch_tables().items() if event_type in handlers}
    assert sorted(table[event_type]) == sorted(folded_by)


def test_table_lists_the_catalogue_in_its_order() -> None:
    assert list(documented_modules()) == list(CATALOG)


def test_every_handler_is_for_a_type_of_the_catalogue() -> None:
    handled = {event_type for handlers in dispatch_tables().values() for event_type in handlers}
    assert handled <= CATALOG.keys()


def test_every_transition_has_a_handler() -> None:
    assert RUN_TRANSITIONS.keys() <= evolve.HANDLERS.keys()
