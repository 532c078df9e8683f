"""What the readers of jaxprs have in common: equations, the user's lines, and sizes."""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from math import prod
from typing import Any

from jax.extend.core import jaxprs_in_params

from xlapipe.compile.lowering.user_frame import is_user_code
from xlapipe.jax_private import user_frames
from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import is_own_code
from xlapipe.plans.compile_times import Copies

# Their own jaxprs are what a kernel does.
KERNELS = ("pallas_call", "mpmd_map")


def equations(jaxpr: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The equations of a jaxpr and of those that it calls, each jaxpr once, without kernels'."""
    seen = set() if seen is None else seen
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name not in KERNELS:
            for inner in jaxprs_in_params(equation.params):
                yield from equations(inner, seen)


def pallas_calls(jaxpr: Any, names: Container[str] = ("pallas_call",)) -> Iterator[Any]:
    """The equations that call a Pallas kernel, in their order.

    Args:
      names: of jax's primitives.
    """
    return (equation for equation in equations(jaxpr) if equation.primitive.name in names)


def source_of(equation: Any) -> SourceLine | None:
    """The innermost line of the program's own code, as `read.stack_frames` finds it in HLO."""
    frame = _frame(equation, is_own_code) or _frame(equation, lambda _: True)
    return None if frame is None else SourceLine(frame.file_name, frame.start_line)


def equation_line(equation: Any) -> str:
    """` at file:line` of the user's call that made an equation of a jaxpr; empty if unknown."""
    frame = _frame(equation, is_own_code)
    return f" at {frame.file_name}:{frame.start_line}" if frame is not None else ""


def user_line(equation: Any) -> str | None:
    """`file:line` of the innermost frame of the user's own code; None without one."""
    frame = _frame(equation, is_user_code)
    return f"{frame.file_name}:{frame.start_line}" if frame is not None else None


def _frame(equation: Any, accepts: Callable[[str], bool]) -> Any:
    frames = user_frames(equation.source_info.traceback)
    return next((frame for frame in frames if accepts(frame.file_name)), None)


def size_bytes(aval: Any) -> int:
    """Bytes of an array, or of what a reference is to."""
    inner = getattr(aval, "inner_aval", aval)
    shape, dtype = getattr(inner, "shape", ()), getattr(inner, "dtype", None)
    return int(prod(shape)) * int(getattr(dtype, "itemsize", 0))


def carried_inputs(parameters: Any) -> slice:
    """Which inputs of a scan's body it passes from one iteration to the next."""
    if "num_carry" in parameters:  # until jax 0.10
        first, count = parameters["num_consts"], parameters["num_carry"]
    else:
        first, count = (len(part) for part in parameters["ft_in"].unpack()[:2])
    return slice(first, first + count)


def traced_copies(closed_jaxpr: Any) -> Copies | None:
    """The operations that Python traced most often; None if none was traced twice.

    A traceback has the position in each function's bytecode, so that two operations of one
    traceback are of two iterations of a loop, or of one that is differentiated.

    Args:
      closed_jaxpr: the `jaxpr` of a `jax.stages.Traced`.
    """
    first: dict[Any, Any] = {}
    counts: Counter[Any] = Counter()
    for equation in equations(closed_jaxpr.jaxpr):
        traceback = equation.source_info.traceback
        if traceback is not None:
            key = (equation.primitive.name, str(equation.source_info.name_stack), traceback)
            first.setdefault(key, equation)
            counts[key] += 1
    operations: Counter[int] = Counter()
    for count in counts.values():
        operations[count] += count
    del operations[1]
    if not operations:
        return None
    times, total = max(operations.items(), key=lambda item: (item[1], item[0]))
    key = next(key for key, count in counts.items() if count == times)
    return Copies(source_of(first[key]), times, total, counts.total())
