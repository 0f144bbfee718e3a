"""Secret references in inputs, and detection of secret values.

Plans are stored, displayed and logged. Therefore a plan refers to a secret by name, as {secret: NAME}, and never
contains its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, cast

import msgspec

from runwright.core.expressions.template import has_expression, mentioned_names

from .problems import DocumentPath

ADVICE = "Remove it from the plan and refer to it by name: {secret: NAME}."

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
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # JSON web token
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----",
    r"\b[a-z][a-z0-9+.-]{1,30}://[^\s/:@{}$]{1,200}:[^\s/@{}$]{1,200}@",  # user and password in a URL
)
_SHAPE = re.compile("|".join(_SHAPES))


def find_secret_values(
    value: Any, path: DocumentPath, name: str = "", advice: str = ADVICE
) -> Iterator[tuple[DocumentPath, str]]:
    """Yield the path of each value that looks like a secret, and a problem sentence that does not show the value.

    `name` is the name of the field that holds the value.
    """
    if isinstance(value, str):
        if _SHAPE.search(value):
            yield path, f"This text looks like it contains a key or a password. {advice}"
        elif value and name and _is_secret_name(name) and not _is_reference(value):
            yield path, f"The value of {name!r} looks like a secret. {advice}"
    elif isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if is_secret_ref(mapping):
            return
        for key, item in mapping.items():
            yield from find_secret_values(item, (*path, key), key, advice)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from find_secret_values(item, (*path, index), name, advice)


def is_secret_ref(value: Any) -> bool:
    """Whether a value is `{secret: NAME}`, which is allowed in place of any value."""
    if not isinstance(value, dict):
        return False
    mapping = cast("dict[str, Any]", value)
    return len(mapping) == 1 and isinstance(mapping.get("secret"), str)


def secret_names(value: Any) -> Iterator[str]:
    """Yield the names of all secrets that a value refers to, at any depth."""
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if is_secret_ref(mapping):
            yield mapping["secret"]
            return
        for item in mapping.values():
            yield from secret_names(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from secret_names(item)


class SecretPlace(msgspec.Struct, frozen=True, rename="camel"):
    """The path in a step's inputs at which the value of a secret is inserted."""

    path: tuple[str | int, ...]
    name: str


def find_secret_places(template: Any, inputs: Any, secret_task_names: frozenset[str]) -> Iterator[SecretPlace]:
    """Yield the places of secrets in inputs whose expressions have been evaluated.

    A place is accepted only if the plan itself refers to a secret there (`template`: the inputs as written in the
    plan), or if the expression there uses nothing but results of `secrets` tasks (`secret_task_names`: their names).
    Other data of the form {secret: NAME} stays data: its sender must not be able to choose which secret is inserted.
    """
    if isinstance(template, str):
        names = mentioned_names(template)
        if names and names <= secret_task_names:
            yield from _places_in(inputs, ())
    elif is_secret_ref(template):
        yield SecretPlace((), inputs["secret"])
    elif isinstance(template, dict):
        for key, item in cast("dict[str, Any]", template).items():
            yield from _below(key, find_secret_places(item, inputs[key], secret_task_names))
    elif isinstance(template, list | tuple):
        for index, item in enumerate(cast("list[Any]", template)):
            yield from _below(index, find_secret_places(item, inputs[index], secret_task_names))


def _places_in(value: Any, path: tuple[str | int, ...]) -> Iterator[SecretPlace]:
    if is_secret_ref(value):
        yield SecretPlace(path, value["secret"])
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _places_in(item, (*path, key))


def _below(key: str | int, places: Iterator[SecretPlace]) -> Iterator[SecretPlace]:
    return (SecretPlace((key, *place.path), place.name) for place in places)


def insert_secrets(inputs: Any, places: Sequence[SecretPlace], values: Mapping[str, str]) -> Any:
    """Return a copy of the inputs with the values of secrets inserted at their places."""
    for place in places:
        inputs = _replace_at(inputs, place.path, values[place.name])
    return inputs


def _replace_at(value: Any, path: tuple[str | int, ...], secret: str) -> Any:
    if not path:
        return secret
    container: Any = copy(value)
    container[path[0]] = _replace_at(container[path[0]], path[1:], secret)
    return container


def _is_secret_name(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if tuple(words[-2:]) in _NOT_SECRET:
        return False
    return bool(words) and (words[-1] in _SECRET_NAMES or "".join(words[-2:]) in _SECRET_NAMES)


def _is_reference(value: str) -> bool:
    """Whether a text only refers to a secret: an expression, or a shell variable."""
    return has_expression(value) or re.fullmatch(r"\$\{?\w+\}?", value) is not None
