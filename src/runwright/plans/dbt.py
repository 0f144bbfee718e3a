"""A dbt manifest as a plan: each model, seed, snapshot and test is a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import RESERVED

VERSIONS = range(9, 13)
"""The versions of dbt's manifest whose nodes look as we expect."""

_VERSION = re.compile(r".*/manifest/v(\d+)\.json")
_RESOURCES = ("seed", "model", "snapshot", "test", "unit_test")
_TESTS = ("test", "unit_test")
LONGEST_ID = 256


class Node(msgspec.Struct, frozen=True):
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
    def runs(self) -> bool:
        """An ephemeral model is only a part of others."""
        return self.resource_type in _RESOURCES and self.config.get("materialized") != "ephemeral"


class Manifest(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    nodes: dict[str, dict[str, Any]]
    unit_tests: dict[str, dict[str, Any]] = {}


def plan_of_manifest(body: bytes, project: str, *, options: Mapping[str, Any], gate: bool = False) -> dict[str, Any]:
    """The plan for a manifest, as its YAML would say it. `options` go into every step.

    With `gate`, what builds on a node also waits for the node's tests, as `dbt build` does it.
    """
    manifest = _read(body)
    nodes = dict(_nodes(manifest))
    if not nodes:
        raise _refused("The manifest has nothing to run: no models, seeds, snapshots or tests.")
    parents = {unique_id: _running_parents(node, manifest, nodes) for unique_id, node in nodes.items()}
    if gate:
        _gate(nodes, parents)
    names = _names(nodes)
    steps = [
        {
            "id": names[unique_id],
            "dbt": {"project": project, "node": unique_id, **_how(node), **options},
            "dependsOn": [names[parent] for parent in parents[unique_id]],
        }
        for unique_id, node in _in_order(nodes, parents)
    ]
    return {
        "plan": str(manifest.metadata.get("project_name") or "dbt"),
        "order": "graph",
        "onFailure": "continue",
        "steps": steps,
    }


def _read(body: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise _refused(f"This is no dbt manifest: {error}.") from None
    schema = str(manifest.metadata.get("dbt_schema_version"))
    match = _VERSION.fullmatch(schema)
    if match is None or int(match[1]) not in VERSIONS:
        known = f"v{VERSIONS[0]} to v{VERSIONS[-1]}"
        raise _refused(f"The manifest has the version {schema!r}; this reads {known}, of dbt 1.5 to 1.11.")
    return manifest


def _nodes(manifest: Manifest) -> Iterator[tuple[str, Node]]:
    for unique_id, data in (*manifest.nodes.items(), *manifest.unit_tests.items()):
        try:
            node = msgspec.convert(data, Node)
        except msgspec.ValidationError as error:
            raise _refused(f"The node {unique_id} cannot be read: {error}.") from None
        if node.runs:
            yield unique_id, node


def _running_parents(node: Node, manifest: Manifest, nodes: Mapping[str, Node]) -> list[str]:
    """The nodes that must have run before; through ephemeral models to what they are made of."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = list(reversed(node.parents))
    while waiting:
        parent = waiting.pop()
        if parent in seen:
            continue
        seen.add(parent)
        if parent in nodes:
            found[parent] = None
        elif parent in manifest.nodes:
            waiting += reversed(msgspec.convert(manifest.nodes[parent], Node).parents)
    return list(found)


def _gate(nodes: Mapping[str, Node], parents: dict[str, list[str]]) -> None:
    """Let what builds on a node wait for the tests of all that it builds on."""
    tests = {unique_id: set(parents[unique_id]) for unique_id, node in nodes.items() if node.resource_type in _TESTS}
    above: dict[str, frozenset[str]] = {}
    for unique_id in _sorted(parents):
        above[unique_id] = frozenset(parents[unique_id]).union(*(above[parent] for parent in parents[unique_id]))
    gates = {
        unique_id: [test for test, needed in tests.items() if needed and needed <= above[unique_id]]
        for unique_id, node in nodes.items()
        if node.resource_type not in _TESTS
    }
    for unique_id, waited_for in gates.items():
        direct = set(parents[unique_id])
        parents[unique_id] += [test for test in waited_for if tests[test] & direct]


def _sorted(parents: Mapping[str, list[str]]) -> list[str]:
    """Each node after those that it is made of."""
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise _refused(f"These nodes are made of each other: {', '.join(error.args[1][:5])}.") from None


def _names(nodes: Mapping[str, Node]) -> dict[str, str]:
    """A step's id is its node's name; the unique id where two have the same."""
    count: dict[str, int] = {}
    for node in nodes.values():
        count[node.name] = count.get(node.name, 0) + 1
    names: dict[str, str] = {}
    for unique_id, node in nodes.items():
        name = node.name if count[node.name] == 1 else unique_id
        names[unique_id] = "".join("_" if char in RESERVED else char for char in name)[:LONGEST_ID]
    return names


def _in_order(nodes: Mapping[str, Node], parents: Mapping[str, list[str]]) -> list[tuple[str, Node]]:
    """What others build on comes first, then by kind and name."""
    depth: dict[str, int] = {}
    for unique_id in _sorted(parents):
        depth[unique_id] = 1 + max((depth[parent] for parent in parents[unique_id]), default=0)
    kinds = _RESOURCES.index
    return sorted(nodes.items(), key=lambda item: (depth[item[0]], kinds(item[1].resource_type), item[0]))


def _how(node: Node) -> dict[str, Any]:
    """How dbt is told to run this node. Tests have a command of their own: `dbt build` would let them hold up models
    that happen to be in the same invocation."""
    if node.resource_type == "unit_test":
        return {"select": f"unit_test:{node.name}", "command": "test"}
    select = f"fqn:{'.'.join(node.fqn)},resource_type:{node.resource_type}"
    return {"select": select, "command": "test"} if node.resource_type == "test" else {"select": select}


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, sentence)
