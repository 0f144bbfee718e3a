"""Values that look like secrets. Plans are stored, shown and logged: they name secrets, they do not hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, cast

import msgspec

from runwright.core.expressions import has_expression, mentioned_names

from .problems import Path

_ADVICE = "Keep it out of the plan and name it instead, as {secret: NAME}."

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_NAMES = frozenset({"password", "passwd", "passphrase", "secret", "token", "credential", "credentials"}) | {
    "authorization",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
}
_NOT_SECRET = frozenset({("page", "token"), ("idempotency", "token"), ("continuation", "token")})

_SHAPES = (
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bgh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{40,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",  # GitLab
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\b[rs]k_live_[A-Za-z0-9]{16,}",  # Stripe
    r"\bsk-[A-Za-z0-9_-]{32,}",  # OpenAI, Anthropic
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # a JSON web token
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----",
    r"\b[a-z][a-z0-9+.-]{1,30}://[^\s/:@{}$]{1,200}:[^\s/@{}$]{1,200}@",  # user and password in an address
)
_SHAPE = re.compile("|".join(_SHAPES))


def find_secrets(value: Any, path: Path, name: str = "") -> Iterator[tuple[Path, str]]:
    """Where something in this value looks like a secret, and a sentence that says so without showing it."""
    if isinstance(value, str):
        if _SHAPE.search(value):
            yield path, f"This text holds what looks like a key or a password. {_ADVICE}"
        elif value and name and _names_a_secret(name) and not _is_reference(value):
            yield path, f"{name!r} is set to what looks like a secret. {_ADVICE}"
    elif isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if is_secret_ref(mapping):
            return
        for key, item in mapping.items():
            yield from find_secrets(item, (*path, key), key)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(cast("list[Any]", value)):
            yield from find_secrets(item, (*path, place), name)


def is_secret_ref(value: Any) -> bool:
    """`{secret: NAME}`, which may stand for any value."""
    if not isinstance(value, dict):
        return False
    mapping = cast("dict[str, Any]", value)
    return len(mapping) == 1 and isinstance(mapping.get("secret"), str)


def secret_refs(value: Any) -> Iterator[str]:
    """The names of the secrets that stand somewhere in a value."""
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if is_secret_ref(mapping):
            yield mapping["secret"]
            return
        for item in mapping.values():
            yield from secret_refs(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from secret_refs(item)


class SecretPlace(msgspec.Struct, frozen=True, rename="camel"):
    """Where in a step's inputs a secret belongs."""

    path: tuple[str | int, ...]
    name: str


def secret_places(written: Any, filled: Any, handed_on: frozenset[str]) -> Iterator[SecretPlace]:
    """The secrets in inputs whose expressions have been filled in: those that the plan itself names, and those that
    an expression takes from what `secrets` tasks gave (`handed_on`: their names). Data that looks like a reference
    is data: whoever sends it to us must not choose which secret it becomes."""
    if isinstance(written, str):
        names = mentioned_names(written)
        if names and names <= handed_on:
            yield from _places_in(filled, ())
    elif is_secret_ref(written):
        yield SecretPlace((), filled["secret"])
    elif isinstance(written, dict):
        for key, item in cast("dict[str, Any]", written).items():
            yield from _below(key, secret_places(item, filled[key], handed_on))
    elif isinstance(written, list | tuple):
        for place, item in enumerate(cast("list[Any]", written)):
            yield from _below(place, secret_places(item, filled[place], handed_on))


def _places_in(value: Any, path: tuple[str | int, ...]) -> Iterator[SecretPlace]:
    if is_secret_ref(value):
        yield SecretPlace(path, value["secret"])
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _places_in(item, (*path, key))


def _below(key: str | int, places: Iterator[SecretPlace]) -> Iterator[SecretPlace]:
    return (SecretPlace((key, *place.path), place.name) for place in places)


def with_secrets(filled: Any, places: Sequence[SecretPlace], values: Mapping[str, str]) -> Any:
    """Inputs with each secret where it belongs."""
    for place in places:
        filled = _replaced(filled, place.path, values[place.name])
    return filled


def _replaced(value: Any, path: tuple[str | int, ...], secret: str) -> Any:
    if not path:
        return secret
    inside: Any = copy(value)
    inside[path[0]] = _replaced(inside[path[0]], path[1:], secret)
    return inside


def _names_a_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if tuple(words[-2:]) in _NOT_SECRET:
        return False
    return bool(words) and (words[-1] in _SECRET_NAMES or "".join(words[-2:]) in _SECRET_NAMES)


def _is_reference(value: str) -> bool:
    """Whether a text only says where a secret comes from: an expression, or a variable of the shell."""
    return has_expression(value) or re.fullmatch(r"\$\{?\w+\}?", value) is not None
