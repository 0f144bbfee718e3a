"""python steps: functions and inline code, checked without importing user code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runwright.contract.plan import Step, StepClass
from runwright.tools.base import Lane, StepContext, StepError
from runwright.tools.python import PythonInputs, PythonTool, is_async

TOOL = PythonTool()
STEP = Step(step_id="s", kind="python")
CONTEXT = StepContext(
    run_id="r",
    step_id="s",
    attempt=1,
    engine_attempt=1,
    write=lambda *_: None,
    save=lambda _: None,
)


@pytest.fixture(autouse=True)
def module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    (tmp_path / "made_jobs.py").write_text(
        "class Shop:\n"
        "    @staticmethod\n"
        "    def load(*rows, day='none'): return {'rows': list(rows), 'day': day}\n"
        "    async def later(self): return 1\n"
        "async def fetch(url): return url\n"
        "limit = 3\n"
    )
    (tmp_path / "made_broken.py").write_text("import made_of_nothing\n")
    (tmp_path / "made_loud.py").write_text("raise RuntimeError('imported')\n")
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("made_")]:
        del sys.modules[name]


def run(**inputs: Any) -> Any:
    return TOOL.run(msgspec.convert(inputs, PythonInputs), CONTEXT)


def test_function_is_called_with_keywords_or_positions() -> None:
    assert run(call="made_jobs:Shop.load", args={"day": "monday"}) == {"rows": [], "day": "monday"}
    assert run(call="made_jobs:Shop.load", args=[1, 2]) == {"rows": [1, 2], "day": "none"}
    assert run(call="os.path:basename", args=["/a/b"]) == "b"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("made_absent:load", "Module 'made_absent' not found"),
        ("made_jobs.deeper:load", "Module 'made_jobs.deeper' not found"),
        ("made_jobs:Shop.sell", "'Shop.sell' not found in module"),
        ("made_jobs:limit", "is not callable"),
    ],
)
def test_missing_function_is_not_retryable(call: str, message: str) -> None:
    with pytest.raises(StepError, match=message) as caught:
        run(call=call)
    assert (caught.value.code, caught.value.retryable) == ("CALL_NOT_FOUND", False)


def test_import_error_names_the_missing_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="made_of_nothing"):
        run(call="made_broken:load")


def test_checking_a_call_does_not_import_it() -> None:
    assert TOOL.check({"call": "made_loud:load"}, STEP) is None
    assert "made_loud" not in sys.modules


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "exactly one"),
        ({"call": "a:b", "code": "1"}, "exactly one"),
        ({"call": "load"}, "Invalid function"),
        ({"call": "shop:"}, "Invalid function"),
        ({"call": "shop:load()"}, "Invalid function"),
        ({"call": 5}, "Invalid function"),
        ({"call": "made_absent.jobs:load"}, "Module 'made_absent' not found"),
        ({"call": "os:getcwd", "args": "{{ params.all }}"}, None),
        ({"call": "{{ params.job }}"}, None),
        ({"code": "if :"}, "(line 1)"),
        ({"code": "x = 1\ny = ="}, "(line 2)"),
        ({"code": "x\0"}, "Python syntax error"),
        ({"code": "await x"}, "Python syntax error"),
        ({"code": "(" * 1000}, "Python syntax error"),
        ({"code": "x", "args": [1]}, "a mapping"),
        ({"code": "x", "args": {"not a name": 1}}, "Invalid variable name"),
        ({"code": "x", "args": {"__builtins__": 1}}, "Invalid variable name"),
        ({"code": "{{ params.code }}"}, "must not contain expressions"),
        ({"code": ""}, None),
    ],
)
def test_invalid_inputs_are_found_before_anything_runs(inputs: dict[str, Any], message: str | None) -> None:
    problem = TOOL.check(inputs, STEP)
    assert (problem is None) if message is None else message in (problem or ""), problem


def test_a_function_of_main_cannot_be_isolated() -> None:
    isolated = Step(step_id="s", kind="python", step_class=StepClass.ISOLATION)
    assert "`__main__`" in (TOOL.check({"call": "__main__:load"}, isolated) or "")
    assert TOOL.check({"call": "__main__:load"}, STEP) is None


@pytest.mark.parametrize(
    ("code", "args", "result"),
    [
        ("n + 1", {"n": 2}, 3),
        ("m = n * 2\nm", {"n": 2}, 4),
        ("result = n\nprint(n)", {"n": 2}, 2),
        ("import math\nmath.floor(n)", {"n": 2.5}, 2),
        ("def twice(x):\n    return x * 2\nresult = twice(n)", {"n": 2}, 4),
        ("x = 1", {}, None),
        ("", {}, None),
        ("result['rows']", {"result": {"rows": 3}}, 3),
        ("[x for x in items if x > limit]", {"items": [1, 2, 3], "limit": 1}, [2, 3]),
        ("__name__", {}, "__step__"),
    ],
)
def test_code_returns_its_result_variable_or_last_expression(code: str, args: dict[str, Any], result: Any) -> None:
    assert run(code=code, args=args) == result


def test_code_does_not_change_its_arguments_or_later_runs() -> None:
    args = {"n": 1}
    run(code="n = 5\nleft = 1", args=args)
    assert args == {"n": 1}
    with pytest.raises(NameError):
        run(code="left", args={})


@pytest.mark.parametrize("inputs", [{"code": "1 +"}, {"code": "1", "args": [1]}, {"call": "os"}, {}])
def test_invalid_evaluated_inputs_are_not_retryable(inputs: dict[str, Any]) -> None:
    with pytest.raises(StepError) as caught:
        run(**inputs)
    assert (caught.value.code, caught.value.retryable) == ("INVALID_INPUT", False)


def test_lane_depends_on_function_kind_and_step_class() -> None:
    isolated = Step(step_id="s", kind="python", step_class=StepClass.ISOLATION)
    run(call="made_jobs:Shop.load")
    assert TOOL.lane(PythonInputs(call="made_jobs:fetch"), STEP) is Lane.STEP_LOOP
    assert TOOL.lane(PythonInputs(call="made_jobs:Shop.load"), STEP) is Lane.THREAD
    assert TOOL.lane(PythonInputs(call="made_jobs:fetch"), isolated) is Lane.PROCESS
    assert TOOL.lane(PythonInputs(code="1"), STEP) is Lane.THREAD
    assert TOOL.lane(PythonInputs(call="made_loud:f"), STEP) is Lane.THREAD, (
        "the module is not imported to choose the lane"
    )


async def _coroutine() -> None: ...


class _Object:
    async def __call__(self) -> None: ...
    async def method(self) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        _coroutine,
        functools.partial(_coroutine),
        functools.partial(functools.partial(_coroutine)),
        _Object(),
        _Object().method,
        functools.partial(_Object()),
    ],
)
def test_a_coroutine_function_is_known_in_all_its_forms(function: Any) -> None:
    assert is_async(function)


@pytest.mark.parametrize("function", [print, len, _Object, functools.partial(print), lambda: None])
def test_other_callables_are_not_coroutine_functions(function: Any) -> None:
    assert not is_async(function)
