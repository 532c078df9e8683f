"""Sizes and index expressions as Inductor prints them, evaluated without running anything.

Python and sympy spell them: `256*c0 + c1`, `s0*s1`, `(s0 // 2)`, `Max(1, s0)`,
`ModularIndexing(c0, 1, 512)`.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

# torch keeps sizes, strides and offsets in int64.
_LIMIT = 2**63
_MOST_CHARACTERS = 4_000
# Alignment of torch._inductor.codegen.memory_planning.
_ALIGN_BYTES = 64

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("Max", "max"), lambda *numbers: max(numbers)),
    **dict.fromkeys(("Min", "min"), lambda *numbers: min(numbers)),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), operator.floordiv),
    **dict.fromkeys(("CeilDiv", "CeilToInt"), lambda number, divisor: -(-number // divisor)),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    "ModularIndexing": lambda number, divisor, modulus: number // divisor % modulus,
    "align": lambda number: -(-number // _ALIGN_BYTES) * _ALIGN_BYTES,
    **dict.fromkeys(("Identity", "int"), operator.index),
}

Dimension = int | str
"""A size or stride: a number, or the text of an expression whose symbols have no value."""


def evaluate(text: str, symbols: Mapping[str, object]) -> int | None:
    """The value of an integer expression; None if a name has none, or it is beyond int64."""
    if text.isdecimal() and len(text) < 19:
        return int(text)
    tree = parse_expression(text)
    return None if tree is None else evaluate_tree(tree, symbols)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> ast.expr | None:
    """The syntax tree of an expression; None if Python cannot parse it."""
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def evaluate_tree(tree: ast.expr, symbols: Mapping[str, object]) -> int | None:
    """As `evaluate`, for a syntax tree."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return _bounded(number)
        case ast.Name(id=name):
            value = symbols.get(name)
            return value if isinstance(value, int) else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = evaluate_tree(operand, symbols)
            return None if value is None else -value
        case ast.BinOp(left=left, op=operation, right=right):
            first, second = evaluate_tree(left, symbols), evaluate_tree(right, symbols)
            if first is None or second is None:
                return None
            return _combine(operation, first, second)
        case ast.Call(func=ast.Name(id=function), args=arguments):
            values = [evaluate_tree(argument, symbols) for argument in arguments]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                return _applied(_FUNCTIONS.get(function), *known)
    return None


def dimensions(texts: Sequence[str], symbols: Mapping[str, object]) -> tuple[Dimension, ...]:
    """Each size as a number if its symbols have values, else as its text."""
    values = ((text, evaluate(text, symbols)) for text in texts)
    return tuple(text if value is None else value for text, value in values)


def _combine(operation: ast.operator, first: int, second: int) -> int | None:
    if isinstance(operation, ast.Div):
        return first // second if second and first % second == 0 else None
    if isinstance(operation, ast.Pow) and not (0 <= second <= 63 and abs(first) < 2**31):
        return None
    return _applied(_OPERATORS.get(type(operation)), first, second)


def _applied(function: Callable[..., int] | None, *values: int) -> int | None:
    """The value of a function; None if it is unknown, or has none for these arguments."""
    try:
        return _bounded(function(*values)) if function is not None else None
    except (TypeError, ValueError, ZeroDivisionError):
        return None


def _bounded(number: int) -> int | None:
    return number if -_LIMIT < number < _LIMIT else None


def linear_terms(text: str) -> Mapping[str, int] | None:
    """Coefficients of the variables that an index expression is linear in.

    A term `k*(v % m)` counts as `k` of `v`: neighbours in `v` are `k` elements apart nearly
    everywhere. Other terms are left out.

    >>> linear_terms("8*x0 + 4096*(r0 % 512) + x1")
    {'x0': 8, 'r0': 4096, 'x1': 1}
    """
    tree = parse_expression(text)
    if tree is None:
        return None
    terms: dict[str, int] = {}
    for factor, part in _terms(tree, 1):
        name = _neighbours_of(part)
        if name is not None:
            terms[name] = terms.get(name, 0) + factor
    return terms


def _terms(tree: ast.expr, factor: int) -> list[tuple[int, ast.expr]]:
    match tree:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _terms(left, factor) + _terms(right, factor)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _terms(left, factor) + _terms(right, -factor)
        case ast.BinOp(left=ast.Constant(value=int(number)), op=ast.Mult(), right=right):
            return _terms(right, factor * number)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(number))):
            return _terms(left, factor * number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _terms(operand, -factor)
    return [(factor, tree)]


def _neighbours_of(tree: ast.expr) -> str | None:
    """The variable whose next value is the next value of `tree`."""
    match tree:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=ast.Mod()):
            return _last_unit(left)
    return None


def _last_unit(tree: ast.expr) -> str | None:
    """The variable with coefficient 1 in a sum."""
    units = [p.id for factor, p in _terms(tree, 1) if factor == 1 and isinstance(p, ast.Name)]
    return units[0] if len(units) == 1 else None
