"""What the parameters of a plan may be."""

from __future__ import annotations

from typing import Any

from runwright.contract.plan import ParamType

_TYPES: dict[ParamType, tuple[type, ...]] = {
    ParamType.STRING: (str,),
    ParamType.INTEGER: (int,),
    ParamType.NUMBER: (int, float),
    ParamType.BOOLEAN: (bool,),
    ParamType.LIST: (list,),
    ParamType.OBJECT: (dict,),
}
_WORDS = {
    ParamType.STRING: "text",
    ParamType.INTEGER: "a whole number",
    ParamType.NUMBER: "a number",
    ParamType.BOOLEAN: "true or false",
    ParamType.LIST: "a list, such as [1, 2]",
    ParamType.OBJECT: 'an object, such as {"a": 1}',
    ParamType.ANY: "anything",
}


def fits(value: Any, kind: ParamType) -> bool:
    if kind is ParamType.ANY:
        return True
    if isinstance(value, bool):
        return kind is ParamType.BOOLEAN
    return isinstance(value, _TYPES[kind])


def kind_of(value: Any) -> ParamType:
    """What a parameter with this default is. A default of null says nothing; a whole number may become any."""
    if isinstance(value, bool):
        return ParamType.BOOLEAN
    kinds = (
        kind for kind in (ParamType.STRING, ParamType.NUMBER, ParamType.LIST, ParamType.OBJECT) if fits(value, kind)
    )
    return next(kinds, ParamType.ANY)


def in_words(kind: ParamType) -> str:
    return _WORDS[kind]
