"""From the tree of one expression to a function of its scope.

Jinja reads the text; what it read is then turned into small functions of our own, one for each node. Jinja's
own way, to write Python code and run it, leaves comparisons and calls out of reach of any limit. Here every
operation goes through the modules beside this one, and a node that is not listed does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from . import operators
from .access import MISSING, absent, call, find, nearest
from .bounds import DEEPEST, Budget, Fault, number, plain_text
from .filters import MAY_BE_MISSING, apply, find_filter
from .kinds import is_list, is_number, is_whole, kind_of
from .operators import COMPARISONS, Operator, numbers_between
from .syntax import label, public, scope_name
from .tests import ASK_WHETHER_THERE, find_test, test

Scope = Mapping[str, Any]
Run = Callable[[Scope, Budget], Any]


class Mentioned:
    """What an expression takes from its scope."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.fields: dict[str, set[str]] = {}  # of each name, the fields that are mentioned outright
        self.whole: set[str] = set()  # names that are used other than by a field that can be told

    def name(self, name: str) -> None:
        self.names.add(name)
        self.whole.add(name)

    def field(self, name: str, field: str) -> None:
        self.names.add(name)
        self.fields.setdefault(name, set()).add(field)


def build(tree: nodes.Expr, mentioned: Mentioned) -> Run:
    """The function that a tree stands for. What it mentions is noted on the way."""
    return _Builder(mentioned).build(tree, 0)


class _Builder:
    def __init__(self, mentioned: Mentioned) -> None:
        self._mentioned = mentioned

    def build(self, node: nodes.Node, depth: int) -> Run:
        if depth > DEEPEST:
            raise Fault("it is nested too deeply")
        builder = _BUILDERS.get(type(node))
        if builder is None:
            raise Fault("it uses what is not allowed in an expression")
        return builder(self, node, depth + 1)

    def constant(self, node: nodes.Const, _: int) -> Run:
        value = node.value
        if is_number(value):
            number(value)
        elif isinstance(value, str) and not _is_encodable(value):
            raise Fault("a quoted text holds half of a surrogate pair")
        return _always(value)

    def name(self, node: nodes.Name, _: int) -> Run:
        name = scope_name(node.name)
        self._mentioned.name(name)
        return named(name)

    def list(self, node: nodes.List | nodes.Tuple, depth: int) -> Run:
        items = [self.build(item, depth) for item in node.items]
        return lambda scope, budget: budget.list([item(scope, budget) for item in items])

    def mapping(self, node: nodes.Dict, depth: int) -> Run:
        pairs = [(self.build(pair.key, depth), self.build(pair.value, depth)) for pair in node.items]

        def run(scope: Scope, budget: Budget) -> Any:
            made: dict[str, Any] = {}
            for key, value in pairs:
                name = key(scope, budget)
                if not isinstance(name, str):
                    raise Fault(f"the keys of a mapping are text, not {kind_of(name)}")
                made[name] = value(scope, budget)
            return made

        return run

    def look_up(self, node: nodes.Getattr | nodes.Getitem, depth: int) -> Run:
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self.slice(node, node.arg, depth)
        owner = label(node.node)
        holder, key = self._reach(node, depth)

        def run(scope: Scope, budget: Budget) -> Any:
            value, name = holder(scope, budget), key(scope, budget)
            found = find(value, name)
            if found is MISSING:
                raise absent(owner, value, name)
            return found

        return run

    def perhaps(self, node: nodes.Node, depth: int) -> Run:
        """A value that may be missing, for `default` and `is defined`. What it is a field of must be there."""
        if isinstance(node, nodes.Name):
            name = scope_name(node.name)
            self.name(node, depth)
            return lambda scope, _budget: scope.get(name, MISSING)
        if not isinstance(node, nodes.Getattr | nodes.Getitem) or isinstance(getattr(node, "arg", None), nodes.Slice):
            return self.build(node, depth)
        holder, key = self._reach(node, depth)
        return lambda scope, budget: find(holder(scope, budget), key(scope, budget))

    def _reach(self, node: nodes.Getattr | nodes.Getitem, depth: int) -> tuple[Run, Run]:
        """What is looked in, and what for. Notes `steps.load` and `steps["load"]` as fields that can be told."""
        if isinstance(node, nodes.Getattr):
            field = public(node.attr)
            key = _always(field)
        else:
            field = node.arg.value if isinstance(node.arg, nodes.Const) else None
            key = self.build(node.arg, depth)
        holder = node.node
        if isinstance(holder, nodes.Name) and isinstance(field, str):
            name = scope_name(holder.name)
            self._mentioned.field(name, field)
            return named(name), key
        return self.build(holder, depth), key

    def slice(self, node: nodes.Getitem, cut: nodes.Slice, depth: int) -> Run:
        whole = self.build(node.node, depth)
        ends = [None if end is None else self.build(end, depth) for end in (cut.start, cut.stop, cut.step)]

        def run(scope: Scope, budget: Budget) -> Any:
            value = whole(scope, budget)
            start, stop, step = (None if end is None else end(scope, budget) for end in ends)
            if step == 0 or not all(end is None or is_whole(end) for end in (start, stop, step)):
                raise Fault("the ends of a slice are whole numbers, and its step is not 0")
            if isinstance(value, str):
                return budget.text(value[start:stop:step])
            if is_list(value):
                return budget.list(list(value[start:stop:step]))
            raise Fault(f"{kind_of(value)} cannot be sliced")

        return run

    def call(self, node: nodes.Call, depth: int) -> Run:
        arguments, named = self._arguments(node, depth)
        target = node.node
        if isinstance(target, nodes.Name) and target.name == "range":
            return lambda scope, budget: numbers_between(budget, [argument(scope, budget) for argument in arguments])
        if not isinstance(target, nodes.Getattr):
            raise Fault("only range() and methods of texts, lists and mappings can be called")
        owner, owner_name, method = self.build(target.node, depth), label(target.node), public(target.attr)

        def run(scope: Scope, budget: Budget) -> Any:
            value = owner(scope, budget)
            given = [argument(scope, budget) for argument in arguments]
            by_name = {name: argument(scope, budget) for name, argument in named.items()}
            return call(budget, owner_name, value, method, given, by_name)

        return run

    def filter(self, node: nodes.Filter, depth: int) -> Run:
        name, function = node.name, find_filter(node.name)
        if node.node is None:
            raise Fault("a filter has no value")
        value = (self.perhaps if name in MAY_BE_MISSING else self.build)(node.node, depth)
        arguments, named = self._arguments(node, depth)

        def run(scope: Scope, budget: Budget) -> Any:
            given = [argument(scope, budget) for argument in arguments]
            by_name = {key: argument(scope, budget) for key, argument in named.items()}
            return apply(budget, name, function, value(scope, budget), given, by_name)

        return run

    def test(self, node: nodes.Test, depth: int) -> Run:
        name, function = node.name, find_test(node.name)
        value = (self.perhaps if name in ASK_WHETHER_THERE else self.build)(node.node, depth)
        arguments, named = self._arguments(node, depth)

        def run(scope: Scope, budget: Budget) -> Any:
            given = [argument(scope, budget) for argument in arguments]
            by_name = {key: argument(scope, budget) for key, argument in named.items()}
            return test(budget, name, function, value(scope, budget), given, by_name)

        return run

    def _arguments(self, node: nodes.Call | nodes.Filter | nodes.Test, depth: int) -> tuple[list[Run], dict[str, Run]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise Fault("arguments with a star are not supported")
        named = {str(pair.key): self.build(pair.value, depth) for pair in node.kwargs}
        return [self.build(argument, depth) for argument in node.args], named

    def choice(self, node: nodes.CondExpr, depth: int) -> Run:
        if node.expr2 is None:
            raise Fault("an `if` needs its `else`: without it there may be no value")
        condition, yes, no = (self.build(part, depth) for part in (node.test, node.expr1, node.expr2))
        return lambda scope, budget: yes(scope, budget) if condition(scope, budget) else no(scope, budget)

    def compare(self, node: nodes.Compare, depth: int) -> Run:
        first = self.build(node.expr, depth)
        rest = [(COMPARISONS[operand.op], self.build(operand.expr, depth)) for operand in node.ops]

        def run(scope: Scope, budget: Budget) -> Any:
            left = first(scope, budget)
            for compare, operand in rest:
                right = operand(scope, budget)
                if not compare(budget, left, right):
                    return False
                left = right
            return True

        return run

    def both(self, node: nodes.And, depth: int) -> Run:
        left, right = self.build(node.left, depth), self.build(node.right, depth)
        return lambda scope, budget: left(scope, budget) and right(scope, budget)

    def either(self, node: nodes.Or, depth: int) -> Run:
        left, right = self.build(node.left, depth), self.build(node.right, depth)
        return lambda scope, budget: left(scope, budget) or right(scope, budget)

    def negation(self, node: nodes.Not, depth: int) -> Run:
        value = self.build(node.node, depth)
        return lambda scope, budget: not value(scope, budget)

    def concat(self, node: nodes.Concat, depth: int) -> Run:
        parts = [self.build(part, depth) for part in node.nodes]
        return lambda scope, budget: budget.text("".join([plain_text(budget, part(scope, budget)) for part in parts]))


def _binary(operator: Operator) -> Callable[[_Builder, Any, int], Run]:
    def build(builder: _Builder, node: nodes.BinExpr, depth: int) -> Run:
        left, right = builder.build(node.left, depth), builder.build(node.right, depth)
        return lambda scope, budget: operator(budget, left(scope, budget), right(scope, budget))

    return build


def _unary(operator: Callable[[Budget, Any], Any]) -> Callable[[_Builder, Any, int], Run]:
    def build(builder: _Builder, node: nodes.UnaryExpr, depth: int) -> Run:
        value = builder.build(node.node, depth)
        return lambda scope, budget: operator(budget, value(scope, budget))

    return build


_BUILDERS: dict[type[nodes.Node], Callable[[_Builder, Any, int], Run]] = {
    nodes.Const: _Builder.constant,
    nodes.Name: _Builder.name,
    nodes.List: _Builder.list,
    nodes.Tuple: _Builder.list,
    nodes.Dict: _Builder.mapping,
    nodes.Getattr: _Builder.look_up,
    nodes.Getitem: _Builder.look_up,
    nodes.Call: _Builder.call,
    nodes.Filter: _Builder.filter,
    nodes.Test: _Builder.test,
    nodes.CondExpr: _Builder.choice,
    nodes.Compare: _Builder.compare,
    nodes.And: _Builder.both,
    nodes.Or: _Builder.either,
    nodes.Not: _Builder.negation,
    nodes.Concat: _Builder.concat,
    nodes.Add: _binary(operators.add),
    nodes.Sub: _binary(operators.subtract),
    nodes.Mul: _binary(operators.multiply),
    nodes.Div: _binary(operators.divide),
    nodes.FloorDiv: _binary(operators.divide_whole),
    nodes.Mod: _binary(operators.remainder),
    nodes.Pow: _binary(operators.power),
    nodes.Neg: _unary(operators.negative),
    nodes.Pos: _unary(operators.positive),
}


def _always(value: Any) -> Run:
    return lambda _scope, _budget: value


def named(name: str) -> Run:
    def run(scope: Scope, _: Budget) -> Any:
        try:
            return scope[name]
        except KeyError:
            raise Fault(f"there is no {name!r} here{nearest(name, list(scope))}") from None

    return run


def _is_encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)
