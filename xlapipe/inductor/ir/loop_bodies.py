"""The body of a loop in an IR dump: loads and stores, with the values that they have.

A body is a class in Python's syntax. Each statement binds a name to an operation on earlier names,
so two values are equal if they are the same operations on the same loads. `ValueTable` numbers
values over all bodies of a graph, equal ones alike.
"""

import ast
import re
from collections.abc import Hashable
from dataclasses import dataclass, field

from xlapipe.inductor.text_lines import TextLines

_INDIRECT = re.compile(r"\bindirect\d+\b")


@dataclass(frozen=True, slots=True)
class BodyStore:
    """`ops.store` or `ops.store_reduction`; `place` is the number of the index over its ranges."""

    buffer: str
    place: int
    value: int


@dataclass
class LoopBody:
    """The buffers that a body loads, and its stores, in order."""

    loads: list[str] = field(default_factory=list)
    stores: list[BodyStore] = field(default_factory=list)


class ValueTable:
    """Numbers for values: equal ones have one number.

    Attributes:
      states: the number of what a buffer holds now; a buffer without an entry holds its own value.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.states: dict[Hashable, int] = {}

    def number(self, *value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def state(self, buffer: Hashable) -> int:
        """The number of what `buffer` holds."""
        if buffer not in self.states:
            self.states[buffer] = self.number("buffer", buffer)
        return self.states[buffer]


def read_body(text: TextLines, table: ValueTable) -> LoopBody:
    # Lines keep their numbers: `if` takes the place of the line `class …`.
    indented = TextLines(text.where, ["if 1:", *text.lines], [text.number(0), *text.numbers])
    tree = indented.python()
    statements = tree.body[0].body if isinstance(tree.body[0], ast.If) else []
    return _BodyReader(statements, table).read()


class _BodyReader:
    def __init__(self, statements: list[ast.stmt], table: ValueTable) -> None:
        self._table = table
        self._indices: dict[str, str] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._body = LoopBody()
        self._values: dict[str, int] = {}
        for statement in statements:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._indices[name] = ast.unparse(value)
                case ast.FunctionDef(name=name):
                    self._functions[name] = statement
        self._ranges = _ranges(statements)

    def read(self) -> LoopBody:
        body = self._functions.get("body")
        if body is not None:
            self._function(body)
        return self._body

    def _function(self, function: ast.FunctionDef) -> int:
        """Follows a function; the number of what it returns."""
        for statement in function.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._values[name] = self._value(value)
                case ast.Expr(value=value):
                    self._value(value)
                case ast.Return(value=ast.expr() as value):
                    return self._value(value)
        return self._table.number("none")

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Name(id=name):
                return self._values.get(name, self._table.number("name", name))
            case ast.Subscript(value=value, slice=place):
                return self._table.number("item", self._value(value), ast.unparse(place))
            case ast.Tuple(elts=items):
                return self._table.number("tuple", *(self._value(item) for item in items))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name), args=arguments):
                return self._call(node, owner, name, arguments)
        return self._table.number("text", ast.unparse(node))

    def _call(self, node: ast.Call, owner: str, name: str, arguments: list[ast.expr]) -> int:
        if owner == "self":
            return self._own(name, arguments)
        match name, arguments:
            case "load", [ast.Constant(value=str(buffer)), index, *_]:
                return self._load(buffer, index)
            case (
                ("store" | "store_reduction"),
                [ast.Constant(value=str(buffer)), index, value, *rest],
            ):
                return self._store(name, buffer, index, value, rest)
            case "reduction", _:
                return self._table.number("reduction", self._ranges, self._operation(node, name))
        return self._operation(node, name)

    def _own(self, name: str, arguments: list[ast.expr]) -> int:
        """`self.get_index('index0')`, `self.masked_subblock1(mask, 0.0)` and the like."""
        match name, arguments:
            case "get_index", [ast.Constant(value=str(index))]:
                text = self._indices.get(index, index)
                # With the values of its indirect variables.
                indirect = (self._values.get(name, -1) for name in _INDIRECT.findall(text))
                return self._table.number("index", text, self._ranges, tuple(indirect))
            case _ if name.startswith("set_indirect") and arguments:
                number = self._value(arguments[0])
                self._values[name.removeprefix("set_")] = number
                return number
        values = [self._value(argument) for argument in arguments]
        function = self._functions.get(name)
        inner = self._function(function) if function is not None and name != "body" else -1
        return self._table.number("block", inner, *values)

    def _load(self, buffer: str, index: ast.expr) -> int:
        self._body.loads.append(buffer)
        return self._table.number("load", self._table.state(buffer), self._value(index))

    def _store(
        self, name: str, buffer: str, index: ast.expr, value: ast.expr, rest: list[ast.expr]
    ) -> int:
        place, number = self._value(index), self._value(value)
        mode = ast.unparse(rest[0]) if rest else "None"
        self._body.stores.append(BodyStore(buffer, place, number))
        return self._table.number(name, buffer, place, number, mode)

    def _operation(self, node: ast.Call, name: str) -> int:
        values = [self._value(argument) for argument in node.args]
        words = tuple((word.arg, self._value(word.value)) for word in node.keywords)
        return self._table.number("op", name, *values, words)


def _ranges(statements: list[ast.stmt]) -> tuple[tuple[str, str], ...]:
    """The loop variables and their sizes, as printed."""
    for statement in statements:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id="var_ranges")], value=ast.Dict(keys=keys, values=values)
            ):
                return tuple(
                    (ast.unparse(key), ast.unparse(value))
                    for key, value in zip(keys, values, strict=True)
                    if key is not None
                )
    return ()
