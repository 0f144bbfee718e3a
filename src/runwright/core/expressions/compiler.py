"""From the syntax tree of one expression to a function of its scope.

Jinja parses the text; its tree is compiled here to closures, one for each node. Jinja's own compiler, which generates
Python code, would execute comparisons and calls without any limit. Here every operation goes through the other modules
of this package, and a node type that is not in the table is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jinja2 import nodes

from . import operators
from .budget import MAX_DEPTH, Budget, ExpressionFailure, checked_number, to_text
from .filters import MISSING_ALLOWED_FILTERS, apply_filter, find_filter
from .lookup import MISSING, call_method, find_item, item_not_found, suggestion
from .operators import COMPARISONS, Operator, make_range
from .parser import parse, parse_lookup
from .predicates import MISSING_ALLOWED_TESTS, apply_test, find_test
from .value_types import is_integer, is_list, is_number, type_name

Scope = Mapping[str, Any]
Evaluator = Callable[[Scope, Budget], Any]

_UNDERSCORE_NAMES = frozenset({"_prev", "_task", "_attempt"})
"""Names with an underscore that playbooks have in their scope."""

_UNDERSCORE_FIELDS = frozenset({"_ref", "_store", "_preview", "__ref__", "__preview__"})
"""Fields of a result that is stored outside of the log. They are keys of a mapping, like all fields."""


class MentionedNames:
    """The names and fields that an expression reads from its scope, as far as they can be determined statically."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.fields: dict[str, set[str]] = {}  # name -> its fields that are mentioned literally
        self.whole: set[str] = set()  # names that are used other than by a literal field

    def add_name(self, name: str) -> None:
        self.names.add(name)
        self.whole.add(name)

    def add_field(self, name: str, field: str) -> None:
        self.names.add(name)
        self.fields.setdefault(name, set()).add(field)


class CompiledExpression:
    """An expression as a function, with the names that it mentions.

    `is_lookup`: the value is a part of the scope, so that the expression cannot have made it grow.
    `last_filter`: the filter that creates the value, if there is one.
    """

    def __init__(self, text: str) -> None:
        self.mentioned = MentionedNames()
        path = parse_lookup(text)
        if path is not None:
            self.is_lookup = True
            self.last_filter: str | None = None
            self.evaluate: Evaluator = _compile_lookup(self.mentioned, *path)
            return
        tree = parse(text)
        self.is_lookup = _is_lookup(tree)
        self.last_filter = tree.name if isinstance(tree, nodes.Filter) else None
        self.evaluate = _Compiler(self.mentioned).compile(tree, 0)


def _compile_lookup(mentioned: MentionedNames, name: str, *fields: str) -> Evaluator:
    """Compile a plain lookup without a syntax tree: a long plan has many of them."""
    if fields:
        mentioned.add_field(name, fields[0])
    else:
        mentioned.add_name(name)
    first = _name_evaluator(name)

    def evaluate(scope: Scope, budget: Budget) -> Any:
        value = first(scope, budget)
        for depth, field in enumerate(fields):
            found = value.get(field, MISSING) if value.__class__ is dict else find_item(value, field)
            if found is MISSING:
                raise item_not_found(".".join((name, *fields[:depth])), value, field)
            value = found
        return value

    return evaluate


class _Arguments(NamedTuple):
    """The compiled arguments of a call, a filter or a test."""

    positional: list[Evaluator]
    keywords: dict[str, Evaluator]

    def evaluate(self, scope: Scope, budget: Budget) -> tuple[list[Any], dict[str, Any]]:
        values = [argument(scope, budget) for argument in self.positional]
        return values, {name: argument(scope, budget) for name, argument in self.keywords.items()}


class _Compiler:
    """Compiles the nodes of one tree, and records the names that they mention."""

    def __init__(self, mentioned: MentionedNames) -> None:
        self._mentioned = mentioned

    def compile(self, node: nodes.Node, depth: int) -> Evaluator:
        if depth > MAX_DEPTH:
            raise ExpressionFailure("it is nested too deeply")
        compile_node = _NODE_COMPILERS.get(type(node))
        if compile_node is None:
            raise ExpressionFailure("it uses syntax that is not supported in expressions")
        return compile_node(self, node, depth + 1)

    def constant(self, node: nodes.Const, _: int) -> Evaluator:
        value = node.value
        if is_number(value):
            checked_number(value)
        elif isinstance(value, str) and not _is_encodable(value):
            raise ExpressionFailure("a quoted text contains an unpaired surrogate")
        return _constant_evaluator(value)

    def name(self, node: nodes.Name, _: int) -> Evaluator:
        name = _checked_name(node.name)
        self._mentioned.add_name(name)
        return _name_evaluator(name)

    def list(self, node: nodes.List | nodes.Tuple, depth: int) -> Evaluator:
        items = [self.compile(item, depth) for item in node.items]
        return lambda scope, budget: budget.charged_list([item(scope, budget) for item in items])

    def mapping(self, node: nodes.Dict, depth: int) -> Evaluator:
        pairs = [(self.compile(pair.key, depth), self.compile(pair.value, depth)) for pair in node.items]

        def evaluate(scope: Scope, budget: Budget) -> Any:
            mapping: dict[str, Any] = {}
            for key, value in pairs:
                name = key(scope, budget)
                if not isinstance(name, str):
                    raise ExpressionFailure(f"the keys of a mapping must be text, not {type_name(name)}")
                mapping[name] = value(scope, budget)
            return mapping

        return evaluate

    def lookup(self, node: nodes.Getattr | nodes.Getitem, depth: int) -> Evaluator:
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self.slice(node, node.arg, depth)
        owner = _label(node.node)
        holder, key = self._holder_and_key(node, depth)
        is_computed = isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Const)

        def evaluate(scope: Scope, budget: Budget) -> Any:
            value, name = holder(scope, budget), key(scope, budget)
            found = find_item(value, name)
            if found is MISSING:
                raise item_not_found(owner, value, None if is_computed and isinstance(name, str) else name)
            return found

        return evaluate

    def optional(self, node: nodes.Node, depth: int) -> Evaluator:
        """Compile a value that may be MISSING, for `default` and `is defined`. The owner of a field must exist."""
        if isinstance(node, nodes.Name):
            name = _checked_name(node.name)
            self.name(node, depth)
            return lambda scope, _budget: scope.get(name, MISSING)
        if not isinstance(node, nodes.Getattr | nodes.Getitem) or isinstance(getattr(node, "arg", None), nodes.Slice):
            return self.compile(node, depth)
        holder, key = self._holder_and_key(node, depth)
        return lambda scope, budget: find_item(holder(scope, budget), key(scope, budget))

    def _holder_and_key(self, node: nodes.Getattr | nodes.Getitem, depth: int) -> tuple[Evaluator, Evaluator]:
        """Compile both sides of a lookup. `steps.load` and `steps["load"]` are recorded as literal fields."""
        if isinstance(node, nodes.Getattr):
            field = _checked_field(node.attr)
            key = _constant_evaluator(field)
        else:
            field = node.arg.value if isinstance(node.arg, nodes.Const) else None
            key = self.compile(node.arg, depth)
        holder = node.node
        if isinstance(holder, nodes.Name) and isinstance(field, str):
            name = _checked_name(holder.name)
            self._mentioned.add_field(name, field)
            return _name_evaluator(name), key
        return self.compile(holder, depth), key

    def slice(self, node: nodes.Getitem, bounds: nodes.Slice, depth: int) -> Evaluator:
        sliced = self.compile(node.node, depth)
        parts = [
            None if part is None else self.compile(part, depth) for part in (bounds.start, bounds.stop, bounds.step)
        ]

        def evaluate(scope: Scope, budget: Budget) -> Any:
            value = sliced(scope, budget)
            start, stop, step = (None if part is None else part(scope, budget) for part in parts)
            if step == 0 or not all(part is None or is_integer(part) for part in (start, stop, step)):
                raise ExpressionFailure("slice bounds must be whole numbers, and the step must not be 0")
            if isinstance(value, str):
                return budget.charged_text(value[start:stop:step])
            if is_list(value):
                return budget.charged_list(list(value[start:stop:step]))
            raise ExpressionFailure(f"{type_name(value)} cannot be sliced")

        return evaluate

    def call(self, node: nodes.Call, depth: int) -> Evaluator:
        arguments = self._arguments(node, depth)
        target = node.node
        if isinstance(target, nodes.Name) and target.name == "range":
            bounds = arguments.positional
            return lambda scope, budget: make_range(budget, [bound(scope, budget) for bound in bounds])
        if not isinstance(target, nodes.Getattr):
            raise ExpressionFailure("only range() and methods of texts, lists and mappings can be called")
        owner, owner_label, method = self.compile(target.node, depth), _label(target.node), _checked_field(target.attr)

        def evaluate(scope: Scope, budget: Budget) -> Any:
            value = owner(scope, budget)
            positional, keywords = arguments.evaluate(scope, budget)
            return call_method(budget, owner_label, value, method, positional, keywords)

        return evaluate

    def filter(self, node: nodes.Filter, depth: int) -> Evaluator:
        name, function = node.name, find_filter(node.name)
        if node.node is None:
            raise ExpressionFailure("a filter has no value")
        value = (self.optional if name in MISSING_ALLOWED_FILTERS else self.compile)(node.node, depth)
        arguments = self._arguments(node, depth)

        def evaluate(scope: Scope, budget: Budget) -> Any:
            positional, keywords = arguments.evaluate(scope, budget)
            return apply_filter(budget, name, function, value(scope, budget), positional, keywords)

        return evaluate

    def test(self, node: nodes.Test, depth: int) -> Evaluator:
        name, function = node.name, find_test(node.name)
        value = (self.optional if name in MISSING_ALLOWED_TESTS else self.compile)(node.node, depth)
        arguments = self._arguments(node, depth)

        def evaluate(scope: Scope, budget: Budget) -> Any:
            positional, keywords = arguments.evaluate(scope, budget)
            return apply_test(budget, name, function, value(scope, budget), positional, keywords)

        return evaluate

    def _arguments(self, node: nodes.Call | nodes.Filter | nodes.Test, depth: int) -> _Arguments:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise ExpressionFailure("unpacking arguments with * or ** is not supported")
        keywords = {str(pair.key): self.compile(pair.value, depth) for pair in node.kwargs}
        return _Arguments([self.compile(argument, depth) for argument in node.args], keywords)

    def conditional(self, node: nodes.CondExpr, depth: int) -> Evaluator:
        if node.expr2 is None:
            raise ExpressionFailure("`if` requires `else`: without it there may be no value")
        condition, then, otherwise = (self.compile(part, depth) for part in (node.test, node.expr1, node.expr2))
        return lambda scope, budget: then(scope, budget) if condition(scope, budget) else otherwise(scope, budget)

    def compare(self, node: nodes.Compare, depth: int) -> Evaluator:
        first = self.compile(node.expr, depth)
        rest = [(COMPARISONS[operand.op], self.compile(operand.expr, depth)) for operand in node.ops]

        def evaluate(scope: Scope, budget: Budget) -> Any:
            left = first(scope, budget)
            for compare, operand in rest:
                right = operand(scope, budget)
                if not compare(budget, left, right):
                    return False
                left = right
            return True

        return evaluate

    def conjunction(self, node: nodes.And, depth: int) -> Evaluator:
        left, right = self.compile(node.left, depth), self.compile(node.right, depth)
        return lambda scope, budget: left(scope, budget) and right(scope, budget)

    def disjunction(self, node: nodes.Or, depth: int) -> Evaluator:
        left, right = self.compile(node.left, depth), self.compile(node.right, depth)
        return lambda scope, budget: left(scope, budget) or right(scope, budget)

    def negation(self, node: nodes.Not, depth: int) -> Evaluator:
        value = self.compile(node.node, depth)
        return lambda scope, budget: not value(scope, budget)

    def concatenation(self, node: nodes.Concat, depth: int) -> Evaluator:
        parts = [self.compile(part, depth) for part in node.nodes]
        return lambda scope, budget: budget.charged_text(
            "".join([to_text(budget, part(scope, budget)) for part in parts])
        )


def _binary(operator: Operator) -> Callable[[_Compiler, Any, int], Evaluator]:
    def compile_node(compiler: _Compiler, node: nodes.BinExpr, depth: int) -> Evaluator:
        left, right = compiler.compile(node.left, depth), compiler.compile(node.right, depth)
        return lambda scope, budget: operator(budget, left(scope, budget), right(scope, budget))

    return compile_node


def _unary(operator: Callable[[Budget, Any], Any]) -> Callable[[_Compiler, Any, int], Evaluator]:
    def compile_node(compiler: _Compiler, node: nodes.UnaryExpr, depth: int) -> Evaluator:
        value = compiler.compile(node.node, depth)
        return lambda scope, budget: operator(budget, value(scope, budget))

    return compile_node


_NODE_COMPILERS: dict[type[nodes.Node], Callable[[_Compiler, Any, int], Evaluator]] = {
    nodes.Const: _Compiler.constant,
    nodes.Name: _Compiler.name,
    nodes.List: _Compiler.list,
    nodes.Tuple: _Compiler.list,
    nodes.Dict: _Compiler.mapping,
    nodes.Getattr: _Compiler.lookup,
    nodes.Getitem: _Compiler.lookup,
    nodes.Call: _Compiler.call,
    nodes.Filter: _Compiler.filter,
    nodes.Test: _Compiler.test,
    nodes.CondExpr: _Compiler.conditional,
    nodes.Compare: _Compiler.compare,
    nodes.And: _Compiler.conjunction,
    nodes.Or: _Compiler.disjunction,
    nodes.Not: _Compiler.negation,
    nodes.Concat: _Compiler.concatenation,
    nodes.Add: _binary(operators.add),
    nodes.Sub: _binary(operators.subtract),
    nodes.Mul: _binary(operators.multiply),
    nodes.Div: _binary(operators.divide),
    nodes.FloorDiv: _binary(operators.floor_divide),
    nodes.Mod: _binary(operators.modulo),
    nodes.Pow: _binary(operators.power),
    nodes.Neg: _unary(operators.negate),
    nodes.Pos: _unary(operators.positive),
}


def _constant_evaluator(value: Any) -> Evaluator:
    return lambda _scope, _budget: value


def _name_evaluator(name: str) -> Evaluator:
    def evaluate(scope: Scope, _: Budget) -> Any:
        try:
            return scope[name]
        except KeyError:
            raise ExpressionFailure(f"unknown name {name!r}{suggestion(name, list(scope))}") from None

    return evaluate


def _checked_name(name: str) -> str:
    """Return the name of a scope's value if expressions may use it."""
    return name if name in _UNDERSCORE_NAMES else _checked_field(name)


def _checked_field(name: str) -> str:
    """Return the name of a field or method if expressions may use it after a dot."""
    if name.startswith("_") and name not in _UNDERSCORE_FIELDS:
        raise ExpressionFailure(
            f'names with a leading underscore are not allowed; for a field of data write ["{name[:40]}"]'
        )
    return name


def _is_lookup(node: nodes.Node) -> bool:
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        node = node.node
    return isinstance(node, nodes.Name)


def _label(node: nodes.Node) -> str:
    """Return the name of a value for messages."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return f"{_label(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return f"{_label(node.node)}[{str(node.arg.value)[:40]!r}]"
    return _label(node.node) if isinstance(node, nodes.Getitem) else "the value"


def _is_encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
