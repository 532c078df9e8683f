"""The expression with which a `for` loop calls a function of the user, such as a model's block."""

import ast
import inspect
import linecache
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from xlapipe.compile.lowering.forward_graph import LoopCall
from xlapipe.compile.lowering.user_frame import is_user_code


@dataclass
class LoopPosition:
    """Counts the calls of a function by one call of its caller."""

    _number: int = -1
    _caller: FrameType | None = None

    def next(self, caller: FrameType | None) -> int:
        """The number of the call that a frame makes now, from 0."""
        self._number = self._number + 1 if caller is self._caller else 0
        self._caller = caller
        return self._number


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user at or outside of a frame."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def call_of(frame: FrameType) -> ast.Call | None:
    """The expression that a frame evaluates, from its source; None if it is not a call."""
    at = inspect.getframeinfo(frame, context=0).positions
    if at is None or None in (at.lineno, at.end_lineno, at.col_offset, at.end_col_offset):
        return None
    lines = linecache.getlines(frame.f_code.co_filename)[at.lineno - 1 : at.end_lineno]  # type: ignore[operator]
    text = "".join(lines).encode()
    after = len(lines[-1].encode()) - at.end_col_offset if lines else 0  # type: ignore[operator]
    try:
        node = ast.parse(b"(" + text[at.col_offset : len(text) - after] + b")", mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) else None


def loop_call(caller: FrameType, code: CodeType, first: object) -> LoopCall | None:
    """The call that a frame evaluates; None if it is in no `for` loop, or cannot be rewritten.

    Args:
      code: function that it calls.
      first: the first argument of that, the module of a method.
    """
    path, line = caller.f_code.co_filename, caller.f_lineno
    call, loop = call_of(caller), _loop_around(path, line)
    if call is None or loop is None:
        return None
    bound = _bound_to(call.func, code.co_name)
    arguments = [*map(ast.unparse, (*call.args, *call.keywords))]
    cls = code.co_qualname.rpartition("<locals>.")[2].rpartition(".")[0]
    function = ast.unparse(call.func)
    own: Any = None
    with suppress(Exception):
        if not cls:
            own = _value(call.func, caller)
        else:
            function = f"{cls}.{code.co_name}"
            arguments.insert(0, ast.unparse(bound))
            names = {**caller.f_globals, **caller.f_locals}
            made = isinstance(bound, ast.Call) and ast.unparse(bound.func) == cls
            if made or type(_value(bound, caller)) is type(first):
                own = inspect.unwrap(eval(function, names))  # flax wraps methods
    if getattr(own, "__code__", None) is not code:
        return None
    counter, header = _with_counter(loop, caller.f_code)
    return LoopCall(
        source=f"{path}:{line}",
        written=ast.unparse(call),
        function=function,
        arguments=", ".join(arguments),
        counter=counter,
        header=header,
        header_source=f"{path}:{loop.lineno}",
    )


def _bound_to(function: ast.expr, name: str) -> ast.expr:
    """The module whose method is called: `block` in `block(x)` and in `block.forward(x)`."""
    is_named = isinstance(function, ast.Attribute) and function.attr == name
    return function.value if is_named else function  # type: ignore[attr-defined]


def _value(expression: ast.expr, frame: FrameType) -> Any:
    """The value of an expression that calls nothing; None for another one."""
    if any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(expression)):
        return None
    return eval(ast.unparse(expression), frame.f_globals, frame.f_locals)


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(path)))


def _loop_around(path: str, line: int) -> ast.For | None:
    """The only loop around a line in the function that the line is in."""
    around = [
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.comprehension)
        and getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)
    ]
    inner = around[-2:]  # the outermost first
    if len(around) < 2 or not isinstance(inner[0], ast.FunctionDef):
        return None
    return inner[1] if isinstance(inner[1], ast.For) else None


def _with_counter(loop: ast.For, code: CodeType) -> tuple[str, str]:
    """The variable that counts a loop's iterations from 0, and the loop's first line with it."""
    own = "number" if "number" not in code.co_varnames else "iteration"
    target, over = ast.unparse(loop.target), ast.unparse(loop.iter)
    if over.startswith("range(") and isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1:
        counter = own if target == "_" else target
        return counter, f"for {counter} in {over}:"
    return own, f"for {own}, {target} in enumerate({over}):"
