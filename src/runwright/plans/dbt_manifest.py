"""Convert a dbt manifest to a plan: each model, seed, snapshot and test becomes a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import RESERVED

from .steps import MAX_ID_CHARS

VERSIONS = range(9, 13)
"""Supported versions of the manifest schema (dbt 1.5 to 1.11)."""

_VERSION = re.compile(r".*/manifest/v(\d+)\.json")
_RESOURCES = ("seed", "model", "snapshot", "test", "unit_test")
_TESTS = ("test", "unit_test")


class DbtNode(msgspec.Struct, frozen=True):
    unique_id: str
    name: str
    resource_type: str
    fqn: list[str]
    depends_on: dict[str, Any] = {}
    config: dict[str, Any] = {}

    @property
    def parents(self) -> list[str]:
        return self.depends_on.get("nodes") or []

    @property
    def is_runnable(self) -> bool:
        """Whether dbt executes the node. An ephemeral model is only compiled into other models."""
        return self.resource_type in _RESOURCES and self.config.get("materialized") != "ephemeral"


class DbtManifest(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    nodes: dict[str, dict[str, Any]]
    unit_tests: dict[str, dict[str, Any]] = {}


def plan_from_manifest(body: bytes, project: str, *, options: Mapping[str, Any], gate: bool = False) -> dict[str, Any]:
    """Return the plan of a manifest as a document. `options` are added to the inputs of every step.

    With `gate`, a node that depends on another also waits for the tests of that node, as in `dbt build`.
    """
    manifest = _read(body)
    nodes = dict(_nodes(manifest))
    if not nodes:
        raise _invalid("The manifest has nothing to run: no models, seeds, snapshots or tests.")
    parents = {unique_id: _runnable_parents(node, manifest, nodes) for unique_id, node in nodes.items()}
    if gate:
        _gate(nodes, parents)
    step_ids = _step_ids(nodes)
    steps = [
        {
            "id": step_ids[unique_id],
            "dbt": {"project": project, "node": unique_id, **_selection(node), **options},
            "dependsOn": [step_ids[parent] for parent in parents[unique_id]],
        }
        for unique_id, node in _execution_order(nodes, parents)
    ]
    return {
        "plan": str(manifest.metadata.get("project_name") or "dbt"),
        "order": "graph",
        "onFailure": "continue",
        "steps": steps,
    }


def _read(body: bytes) -> DbtManifest:
    try:
        manifest = msgspec.json.decode(body, type=DbtManifest)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise _invalid(f"Invalid dbt manifest: {error}.") from None
    schema = str(manifest.metadata.get("dbt_schema_version"))
    match = _VERSION.fullmatch(schema)
    if match is None or int(match[1]) not in VERSIONS:
        supported = f"v{VERSIONS[0]} to v{VERSIONS[-1]}"
        raise _invalid(f"Unsupported manifest version {schema!r}. Supported: {supported} (dbt 1.5 to 1.11).")
    return manifest


def _nodes(manifest: DbtManifest) -> Iterator[tuple[str, DbtNode]]:
    for unique_id, data in (*manifest.nodes.items(), *manifest.unit_tests.items()):
        try:
            node = msgspec.convert(data, DbtNode)
        except msgspec.ValidationError as error:
            raise _invalid(f"Invalid node {unique_id}: {error}.") from None
        if node.is_runnable:
            yield unique_id, node


def _runnable_parents(node: DbtNode, manifest: DbtManifest, nodes: Mapping[str, DbtNode]) -> list[str]:
    """Return the runnable nodes that a node depends on. Ephemeral models are replaced by their own parents."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    pending = list(reversed(node.parents))
    while pending:
        parent = pending.pop()
        if parent in seen:
            continue
        seen.add(parent)
        if parent in nodes:
            found[parent] = None
        elif parent in manifest.nodes:
            pending += reversed(msgspec.convert(manifest.nodes[parent], DbtNode).parents)
    return list(found)


def _gate(nodes: Mapping[str, DbtNode], parents: dict[str, list[str]]) -> None:
    """Make each node depend on the tests of the nodes that it depends on."""
    tests = {unique_id: set(parents[unique_id]) for unique_id, node in nodes.items() if node.resource_type in _TESTS}
    ancestors: dict[str, frozenset[str]] = {}
    for unique_id in _topological_order(parents):
        ancestors[unique_id] = frozenset(parents[unique_id]).union(
            *(ancestors[parent] for parent in parents[unique_id])
        )
    gates = {
        unique_id: [test for test, needed in tests.items() if needed and needed <= ancestors[unique_id]]
        for unique_id, node in nodes.items()
        if node.resource_type not in _TESTS
    }
    for unique_id, gate_tests in gates.items():
        direct = set(parents[unique_id])
        parents[unique_id] += [test for test in gate_tests if tests[test] & direct]


def _topological_order(parents: Mapping[str, list[str]]) -> list[str]:
    """Return the nodes in topological order."""
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise _invalid(f"Dependency cycle: {', '.join(error.args[1][:5])}.") from None


def _step_ids(nodes: Mapping[str, DbtNode]) -> dict[str, str]:
    """Return the step id of each node: its name, or its unique id if several nodes have the same name."""
    count: dict[str, int] = {}
    for node in nodes.values():
        count[node.name] = count.get(node.name, 0) + 1
    step_ids: dict[str, str] = {}
    for unique_id, node in nodes.items():
        name = node.name if count[node.name] == 1 else unique_id
        step_ids[unique_id] = "".join("_" if char in RESERVED else char for char in name)[:MAX_ID_CHARS]
    return step_ids


def _execution_order(nodes: Mapping[str, DbtNode], parents: Mapping[str, list[str]]) -> list[tuple[str, DbtNode]]:
    """Order nodes by depth in the dependency graph, then by resource type and name."""
    depth: dict[str, int] = {}
    for unique_id in _topological_order(parents):
        depth[unique_id] = 1 + max((depth[parent] for parent in parents[unique_id]), default=0)
    rank = _RESOURCES.index
    return sorted(nodes.items(), key=lambda item: (depth[item[0]], rank(item[1].resource_type), item[0]))


def _selection(node: DbtNode) -> dict[str, Any]:
    """Return the inputs that make dbt run this node only.

    Tests use the command `test`: with `dbt build` they would block models that are in the same invocation.
    """
    if node.resource_type == "unit_test":
        return {"select": f"unit_test:{node.name}", "command": "test"}
    select = f"fqn:{'.'.join(node.fqn)},resource_type:{node.resource_type}"
    return {"select": select, "command": "test"} if node.resource_type == "test" else {"select": select}


def _invalid(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, sentence)
