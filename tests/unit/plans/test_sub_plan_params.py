"""Parameters that steps pass to sub-plans are checked when a plan is validated, not only when it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from runwright.control.plan_loader import read_plan_file
from runwright.plans.problems import PlanInvalid

CHILD = "plan: child\nparams: {size: 1}\nparamTypes: {size: integer, day: string}\nsteps: [{id: a, noop: {}}]\n"


def parent(tmp_path: Path, params: str) -> Path:
    (tmp_path / "child.yaml").write_text(CHILD)
    file = tmp_path / "parent.yaml"
    file.write_text(
        f"plan: parent\nparams: {{d: x}}\nsteps:\n  - {{id: sub, plan: {{path: child.yaml, params: {params}}}}}\n"
    )
    return file


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ("{}", "Step 'sub': The plan child needs day (a string)."),
        ("{day: x, sise: 2}", "Step 'sub': Unknown parameter 'sise' of plan child. Did you mean 'size'?"),
        ("{day: x, size: large}", "Step 'sub': Parameter 'size' must be an integer; this is str."),
    ],
)
def test_parameters_of_a_sub_plan_are_validated(tmp_path: Path, params: str, problem: str) -> None:
    with pytest.raises(PlanInvalid) as caught:
        read_plan_file(parent(tmp_path, params))
    assert [each.sentence for each in caught.value.problems] == [problem]


@pytest.mark.parametrize("params", ["{day: x}", "{day: '{{ params.d }}', size: '{{ 2 }}'}"])
def test_accepted_and_computed_parameters_are_valid(tmp_path: Path, params: str) -> None:
    read_plan_file(parent(tmp_path, params))
