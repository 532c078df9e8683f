"""How functions of the user are called while a step is traced, from Python's own monitoring.

A jaxpr has the calls around an equation, but neither their arguments nor how often a function is
called. Both decide how a checkpoint of the function is written, and so does the expression with
which a `for` loop calls it.
"""

import ast
import inspect
import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cache
from types import CodeType, FrameType
from typing import Any

import jax
from jax.extend.core import valid_jaxtype

from xlapipe.compile.lowering.forward_graph import LoopCall
from xlapipe.compile.lowering.names import is_user_code

JAX, NNX, LINEN, EQUINOX = "jax.checkpoint", "nnx.remat", "nn.remat", "eqx.filter_checkpoint"
# The form of jax.checkpoint for the modules of a library, by the class that all of them inherit.
_FORMS = {
    ("flax.nnx", "Module"): NNX,
    ("flax.nnx", "Variable"): NNX,
    ("flax.linen", "Module"): LINEN,
    ("equinox", "Module"): EQUINOX,
}
_PLAIN = (bool, int, float, str)
_monitoring = sys.monitoring
_EVENTS = _monitoring.events


class Passed(Enum):
    """How a call gives a parameter something else than arrays."""

    NOT = auto()
    BY_POSITION = auto()
    OTHERWISE = auto()


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


@dataclass
class RecordedCalls:
    """The calls of a function with traced arguments.

    Attributes:
      count: calls inside of functions that `jax.grad` differentiates.
      form: of `jax.checkpoint` for the arguments.
      static: how parameters that are not arrays were passed, by position.
      other_output: a value that it returned beside arrays; None if it returned arrays alone.
      expressions: that call it, by line; None for those that are not a loop's.
      position: of the last call in its loop.
      longest: the most calls by one call of a caller.
    """

    count: int = 0
    form: str = JAX
    static: dict[int, set[Passed]] = field(default_factory=lambda: defaultdict(set))
    other_output: str | None = None
    expressions: dict[str, LoopCall | None] = field(default_factory=dict)
    position: LoopPosition = field(default_factory=LoopPosition)
    longest: int = 0

    @property
    def static_argnums(self) -> tuple[int, ...] | None:
        """The positions of what is not an array; None if `static_argnums` cannot name them."""
        if self.form == NNX:  # which finds the positions of names and defaults
            unknown = any(Passed.OTHERWISE in ways for ways in self.static.values())
            return None if unknown else tuple(sorted(self.static))
        given = {position: ways for position, ways in self.static.items() if ways != {Passed.NOT}}
        if any(ways != {Passed.BY_POSITION} for ways in given.values()):
            return None
        return tuple(sorted(given))

    @property
    def loop(self) -> LoopCall | None:
        """The loop that makes all calls; None if several lines do, or it cannot be changed."""
        (*others, last) = self.expressions.values() or (None,)
        return None if others or last is None else replace(last, calls=self.longest)


@contextmanager
def recorded_calls(counted: Callable[[], bool]) -> Iterator[Mapping[CodeType, RecordedCalls]]:
    """Records calls of the user's functions."""
    calls: dict[CodeType, RecordedCalls] = {}
    running = False

    def start(code: CodeType, _: int) -> object:
        nonlocal running
        if not is_user_code(code.co_filename):
            return _monitoring.DISABLE
        if not running:
            running = True
            with suppress(Exception):  # modules whose __init__ runs cannot be flattened
                _record(calls, code, sys._getframe(1), counted())
            running = False
        return None

    def end(code: CodeType, _: int, value: object) -> object:
        if not is_user_code(code.co_filename):
            return _monitoring.DISABLE
        record = calls.get(code)
        if record is not None:
            with suppress(Exception):
                others = (leaf for leaf in _leaves(value) if not valid_jaxtype(leaf))
                other = next((leaf for leaf in others if not _is_module(leaf)), None)
                if record.other_output is None and other is not None:
                    record.other_output = f"{other!r:.60}"
        return None

    tool = next(number for number in (4, 3) if _monitoring.get_tool(number) is None)
    _monitoring.use_tool_id(tool, "xlapipe")
    try:
        _monitoring.register_callback(tool, _EVENTS.PY_START, start)
        _monitoring.register_callback(tool, _EVENTS.PY_RETURN, end)
        _monitoring.set_events(tool, _EVENTS.PY_START | _EVENTS.PY_RETURN)
        yield calls
    finally:
        _monitoring.set_events(tool, 0)
        for event in (_EVENTS.PY_START, _EVENTS.PY_RETURN):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)


def _record(
    calls: dict[CodeType, RecordedCalls], code: CodeType, frame: FrameType, counted: bool
) -> None:
    variadic = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    extra = sum(bool(code.co_flags & flag) for flag in variadic)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra]
    values = [frame.f_locals.get(name) for name in names]
    leaves = [_leaves(value) for value in values]
    if not any(
        isinstance(leaf, jax.core.Tracer) for argument in leaves for leaf in _inner(argument)
    ):
        return
    own_calls = calls.setdefault(code, RecordedCalls())
    own_calls.count += counted
    caller = calling_frame(frame.f_back)
    if counted and caller is not None:
        line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        own_calls.longest = max(own_calls.longest, own_calls.position.next(caller) + 1)
        if line not in own_calls.expressions:
            own_calls.expressions[line] = loop_call(caller, code, values[0])
    for position, argument in enumerate(leaves):
        forms = [form for form in map(_form, argument) if form is not None]
        own_calls.form = next(iter(forms), own_calls.form)
        others = [leaf for leaf in argument if not _is_array_or_module(leaf)]
        if others:
            own_calls.static[position].add(_passed(frame, position, own_calls.form, others))


def _leaves(value: object) -> list[Any]:
    """Arrays, modules and what else is in a value; jax warns of iterators that it flattens."""
    leaves: list[Any] = jax.tree.leaves(
        value, is_leaf=lambda item: _is_module(item) or isinstance(item, Iterator)
    )
    return leaves


def _inner(leaves: list[Any]) -> Iterator[Any]:
    for leaf in leaves:
        yield from jax.tree.leaves(leaf) if _is_module(leaf) else (leaf,)


def _form(value: object) -> str | None:
    for cls in type(value).__mro__:
        for (package, name), form in _FORMS.items():
            if cls.__name__ == name and f"{cls.__module__}.".startswith(f"{package}."):
                return form
    return None


def _is_module(value: object) -> bool:
    return _form(value) is not None


def _is_array_or_module(value: Any) -> bool:
    return _is_module(value) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def _passed(frame: FrameType, position: int, form: str, values: list[Any]) -> Passed:
    code = frame.f_code
    if position >= code.co_argcount or not all(isinstance(value, _PLAIN) for value in values):
        return Passed.OTHERWISE
    if form == NNX:
        return Passed.BY_POSITION
    caller = calling_frame(frame.f_back)
    call = call_of(caller) if caller is not None else None
    if call is None or any(isinstance(keyword, ast.Starred) for keyword in call.args):
        return Passed.OTHERWISE
    names = [keyword.arg for keyword in call.keywords]
    if None in names or code.co_varnames[position] in names:
        return Passed.OTHERWISE
    given = len(call.args) + (code.co_varnames[0] == "self")
    return Passed.BY_POSITION if position < given else Passed.NOT


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
    """The call that a frame evaluates; None if it is in no `for` loop, or cannot be rewritten."""
    path, line = caller.f_code.co_filename, caller.f_lineno
    call, loop = call_of(caller), _loop_around(path, line)
    if call is None or loop is None:
        return None
    bound = _bound_to(call.func, code.co_name)
    arguments = [*map(ast.unparse, (*call.args, *call.keywords))]
    cls = code.co_qualname.rpartition("<locals>.")[2].rpartition(".")[0]
    function = ast.unparse(call.func)
    callee: Any = None
    with suppress(Exception):
        if not cls:
            callee = _value(call.func, caller)
        else:
            function = f"{cls}.{code.co_name}"
            arguments.insert(0, ast.unparse(bound))
            names = {**caller.f_globals, **caller.f_locals}
            made = isinstance(bound, ast.Call) and ast.unparse(bound.func) == cls
            if made or type(_value(bound, caller)) is type(first):
                callee = inspect.unwrap(eval(function, names))  # flax wraps methods
    if getattr(callee, "__code__", None) is not code:
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
    counter_name = "number" if "number" not in code.co_varnames else "iteration"
    target, over = ast.unparse(loop.target), ast.unparse(loop.iter)
    if over.startswith("range(") and isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1:
        counter = counter_name if target == "_" else target
        return counter, f"for {counter} in {over}:"
    return counter_name, f"for {counter_name}, {target} in enumerate({over}):"
