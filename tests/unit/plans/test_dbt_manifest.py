"""Plans created from dbt manifests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.contract.errors import RunwrightError
from runwright.plans.dbt_manifest import plan_from_manifest

V12 = "https://schemas.getdbt.com/dbt/manifest/v12.json"


def node(name: str, *parents: str, kind: str = "model", package: str = "shop", **config: Any) -> dict[str, Any]:
    return {
        "unique_id": f"{kind}.{package}.{name}",
        "name": name,
        "resource_type": kind,
        "fqn": [package, name],
        "depends_on": {"nodes": list(parents)},
        "config": config,
        "columns": {},
    }


def manifest(*nodes: dict[str, Any], version: str = V12, **more: Any) -> bytes:
    metadata = {"dbt_schema_version": version, "project_name": "shop"}
    return json.dumps({"metadata": metadata, "nodes": {each["unique_id"]: each for each in nodes}, **more}).encode()


def needs(body: bytes, **options: Any) -> dict[str, list[str]]:
    plan = plan_from_manifest(body, ".", options={}, **options)
    return {step["id"]: step["dependsOn"] for step in plan["steps"]}


def test_each_node_is_a_step_that_depends_on_its_parents() -> None:
    body = manifest(
        node("orders", "seed.shop.raw", "source.shop.outside"),
        node("raw", kind="seed"),
        node("history", "model.shop.orders", kind="snapshot"),
        node("unique_orders", "model.shop.orders", kind="test"),
    )
    assert needs(body) == {"raw": [], "orders": ["raw"], "history": ["orders"], "unique_orders": ["orders"]}
    plan = plan_from_manifest(body, "project", options={"target": "prod"})
    assert plan["plan"] == "shop"
    assert plan["steps"][1]["dbt"] == {
        "project": "project",
        "node": "model.shop.orders",
        "select": "fqn:shop.orders,resource_type:model",
        "target": "prod",
    }


def test_ephemeral_models_are_replaced_by_their_parents() -> None:
    body = manifest(
        node("raw"),
        node("middle", "model.shop.raw", materialized="ephemeral"),
        node("again", "model.shop.middle", materialized="ephemeral"),
        node("top", "model.shop.again", "model.shop.raw"),
    )
    assert needs(body) == {"raw": [], "top": ["raw"]}


def test_with_gate_dependents_wait_for_tests_of_their_parents() -> None:
    body = manifest(
        node("a"),
        node("b", "model.shop.a"),
        node("c", "model.shop.b"),
        node("test_a", "model.shop.a", kind="test"),
        node("test_both", "model.shop.a", "model.shop.b", kind="test"),
    )
    assert needs(body)["b"] == ["a"]
    gated = needs(body, gate=True)
    assert gated["b"] == ["a", "test_a"], "a test of b itself cannot come before b"
    assert set(gated["c"]) == {"b", "test_both"}
    assert gated["test_both"] == ["a", "b"]


def test_a_unit_test_is_a_step_after_its_model() -> None:
    unit = node("adds_up", "model.shop.a", kind="unit_test")
    body = manifest(node("a"), unit_tests={unit["unique_id"]: unit})
    assert needs(body)["adds_up"] == ["a"]


def test_nodes_with_the_same_name_get_qualified_ids() -> None:
    body = manifest(node("orders"), node("orders", kind="seed"), node("x", "model.shop.orders"))
    assert needs(body) == {"seed.shop.orders": [], "model.shop.orders": [], "x": ["model.shop.orders"]}


def test_reserved_characters_in_node_names_are_replaced() -> None:
    assert list(needs(manifest(node("a/b[1]")))) == ["a_b_1_"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "Invalid dbt manifest"),
        (b"[]", "Invalid dbt manifest"),
        (b"{}", "Invalid dbt manifest"),
        (manifest(), "nothing to run"),
        (manifest(node("a", kind="analysis")), "nothing to run"),
        (manifest(node("a"), version="https://schemas.getdbt.com/dbt/manifest/v99.json"), "v9 to v12"),
        (manifest(node("a"), version="something"), "v9 to v12"),
        (manifest(node("a", "model.shop.b"), node("b", "model.shop.a")), "Dependency cycle"),
        (b'{"metadata": {"dbt_schema_version": "%s"}, "nodes": {"x": {}}}' % V12.encode(), "Invalid node x"),
    ],
)
def test_invalid_or_unknown_manifests_are_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(RunwrightError, match=sentence) as refused:
        plan_from_manifest(body, ".", options={})
    assert refused.value.code == "INVALID_PLAN_SCHEMA"


@given(st.data())
def test_steps_of_any_manifest_follow_their_dependencies(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    kinds = [data.draw(st.sampled_from(["model", "seed", "test"])) for _ in range(count)]
    ids = [f"{kind}.shop.n{number}" for number, kind in enumerate(kinds)]
    nodes = []
    for number, kind in enumerate(kinds):
        below = [ids[other] for other in range(number) if kinds[other] != "test"]
        parents = data.draw(st.lists(st.sampled_from(below), unique=True)) if below and kind != "seed" else []
        nodes.append(node(f"n{number}", *parents, kind=kind))
    for gate in (False, True):
        plan = plan_from_manifest(manifest(*nodes), ".", options={}, gate=gate)
        seen: set[str] = set()
        for step in plan["steps"]:
            assert set(step["dependsOn"]) <= seen, "a step must be declared after its dependencies"
            seen.add(step["id"])
        for each in nodes:
            step = next(step for step in plan["steps"] if step["dbt"]["node"] == each["unique_id"])
            assert {parent.rpartition(".")[2] for parent in each["depends_on"]["nodes"]} <= set(step["dependsOn"])
