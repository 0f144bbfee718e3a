"""Table [policy] of runwright.toml: signals that a second person must confirm.

[policy]
secondPerson = ["EMERGENCY_STOP"]            # everywhere

[policy.environments.prod]
secondPerson = ["UPDATE_PARAMS", "CANCEL"]   # in addition
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.problems import did_you_mean

from .signal_rules import RULES


class SignalPolicy:
    def __init__(
        self, everywhere: frozenset[str] = frozenset(), by_environment: Mapping[str, frozenset[str]] | None = None
    ) -> None:
        self._everywhere = everywhere
        self._by_environment = by_environment or {}

    def needs_second_person(self, signal_type: str, environment_id: str) -> bool:
        """Whether a second person must confirm this signal."""
        return signal_type in self._everywhere or signal_type in self._by_environment.get(environment_id, ())


def read_policy(settings: Mapping[str, Any]) -> SignalPolicy:
    """Parse the table `[policy]`."""
    _check_names(settings, ("secondPerson", "environments"), "[policy]")
    places: Any = settings.get("environments", {})
    if not isinstance(places, dict):
        raise _refused("[policy.environments] must contain a table per environment.")
    there: dict[str, frozenset[str]] = {}
    for name, place in cast("dict[str, Any]", places).items():
        if not isinstance(place, dict):
            raise _refused(f"[policy.environments.{name}] must be a table.")
        rules = cast("dict[str, Any]", place)
        _check_names(rules, ("secondPerson",), f"[policy.environments.{name}]")
        there[name] = _signals(rules.get("secondPerson", []))
    return SignalPolicy(_signals(settings.get("secondPerson", [])), there)


def _signals(given: Any) -> frozenset[str]:
    if not isinstance(given, list):
        raise _refused('secondPerson must be a list of signals, such as ["EMERGENCY_STOP"].')
    for name in cast("list[Any]", given):
        if name not in RULES:
            raise _refused(f"Unknown signal {name!r}.{did_you_mean(str(name), RULES)}")
    return frozenset(cast("list[str]", given))


def _check_names(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise _refused(f"Unknown key {name!r} in {where}.{did_you_mean(name, known)}")


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: {sentence}")
