"""What is read from the jaxpr of a traced program: lines, sizes, collectives, dependences.

jax drops what nothing reads before XLA sees the module, and XLA merges, splits and rewrites what
it sees: only the jaxpr has the collectives that the author wrote. Those that only sharding requires
(GSPMD's and Shardy's, of a program without `shard_map`) are not in a jaxpr.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from xlapipe.compile.lowering.names import is_user_code
from xlapipe.jax_private import user_frames
from xlapipe.plans import SourceLine
from xlapipe.plans.call_chains import is_own_code
from xlapipe.plans.program import RequestedCollective

# XLA's kind by a part of the name of jax's primitive, as in `psum_invariant` and
# `all_gather_start`.
_KINDS = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "pbroadcast": "collective-broadcast",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "ragged_all_to_all": "ragged-all-to-all",
    "reduce_scatter": "reduce-scatter",
}
_BEFORE, _BEHIND = ("unreduced_",), ("_start", "_dynamic", "_invariant", "_reduced")
# Their own jaxprs are what a kernel does.
KERNELS = ("pallas_call", "mpmd_map")
# Operations whose result has the values of their operand.
_PASSES_ON = frozenset(
    {"copy", "copy_p", "device_put", "convert_element_type", "pvary", "sharding_constraint"}
)


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
    """The equations that call a Pallas kernel, in their order."""
    return (equation for equation in equations(jaxpr) if equation.primitive.name in names)


def calls_with_constants(jaxpr: Any, consts: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The calls of Pallas kernels, with the values of those operands that are constant arrays."""
    yield from _calls_in(jaxpr, dict(zip(jaxpr.constvars, consts, strict=False)))


def _calls_in(jaxpr: Any, known: dict[Any, Any]) -> Iterator[tuple[Any, list[Any]]]:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        given = [
            np.asarray(atom.val) if isinstance(atom, Literal) else known.get(atom)
            for atom in equation.invars
        ]
        if name == "pallas_call":
            yield equation, given
            continue
        if name in _PASSES_ON and given[0] is not None:
            known[equation.outvars[0]] = given[0]
        if name == "scan":
            carried = carried_inputs(params)
            given = [*given[: carried.start], *[None] * (len(given) - carried.start)]
        for inner in jaxprs_in_params(params):
            passed = given[len(given) - len(inner.invars) :] if name != "while" else []
            inside = zip(inner.invars, passed, strict=False)
            yield from _calls_in(inner, {v: value for v, value in inside if value is not None})


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


def dependent_outputs(jaxpr: Any) -> list[bool]:
    """For each output of a closed jaxpr, whether it may depend on an argument or on the host.

    Equations are not looked into, except calls of jitted functions: all outputs of an equation
    depend on all of its inputs. Time is linear in the number of equations.
    """
    return _outputs(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.invars), {})


def depends_only_on(jaxpr: Any, argument: int, output: int) -> bool:
    """Whether an output of a closed jaxpr depends on this argument, and on no other."""
    chosen = [number == argument for number in range(len(jaxpr.jaxpr.invars))]
    others = [not flag for flag in chosen]
    return (
        _outputs(jaxpr.jaxpr, chosen, {})[output] and not _outputs(jaxpr.jaxpr, others, {})[output]
    )


def _outputs(
    jaxpr: Any, inputs: Sequence[bool], known: dict[tuple[int, tuple[bool, ...]], list[bool]]
) -> list[bool]:
    key = id(jaxpr), tuple(inputs)
    if key in known:
        return known[key]
    dependent = {id(var) for var, depends in zip(jaxpr.invars, inputs, strict=True) if depends}

    def depends(var: Any) -> bool:
        return not isinstance(var, Literal) and id(var) in dependent

    for equation in jaxpr.eqns:
        flags = [depends(var) for var in equation.invars]
        if equation.effects:
            # It may read from the host, or write into an array that a later equation reads.
            dependent.update(id(var) for var in (*equation.invars, *equation.outvars))
            continue
        if not any(flags):
            continue
        results = [True] * len(equation.outvars)
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit"):
            results = _outputs(inner.jaxpr, flags, known)
        dependent.update(
            id(var) for var, result in zip(equation.outvars, results, strict=True) if result
        )
    known[key] = [depends(var) for var in jaxpr.outvars]
    return known[key]


def gradient_outputs(jaxpr: Any) -> list[bool]:
    """For each output of a closed jaxpr, whether it is a gradient, and not an updated argument.

    It depends on an operation of the backward pass, and on no argument of its shape but through
    operations that are differentiated or of the backward pass.
    """
    arguments = [var.aval.shape for var in jaxpr.jaxpr.invars]
    return [
        is_gradient and all(arguments[number] != var.aval.shape for number in read)
        for var, (read, is_gradient) in zip(
            jaxpr.jaxpr.outvars, _read_directly(jaxpr.jaxpr), strict=True
        )
    ]


# The inputs that a value reads other than by the backward pass, and whether it reads that.
_Read = tuple[frozenset[int], bool]


def _read_directly(jaxpr: Any) -> list[_Read]:
    """What each output of a jaxpr reads."""
    nothing: _Read = (frozenset(), False)
    of_var = {id(var): (frozenset({n}), False) for n, var in enumerate(jaxpr.invars)}

    def read(var: Any) -> _Read:
        return nothing if isinstance(var, Literal) else of_var.get(id(var), nothing)

    for equation in jaxpr.eqns:
        inputs = [read(var) for var in equation.invars]
        stack = str(equation.source_info.name_stack)
        if "transpose(" in stack:
            results = [(frozenset[int](), True)] * len(equation.outvars)
        elif "jvp(" in stack:
            results = [nothing] * len(equation.outvars)
        else:
            results = [
                (
                    frozenset().union(*(inputs[number][0] for number in numbers)),
                    is_gradient or any(inputs[number][1] for number in numbers),
                )
                for numbers, is_gradient in _read_by(equation)
            ]
        of_var.update((id(var), row) for var, row in zip(equation.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _read_by(equation: Any) -> list[_Read]:
    """What each result of an equation reads of its operands."""
    opaque = [(frozenset(range(len(equation.invars))), False)] * len(equation.outvars)
    if equation.primitive.name in KERNELS:
        return opaque
    inner = list(jaxprs_in_params(equation.params))
    if len(inner) != 1 or len(inner[0].invars) != len(equation.invars):
        return opaque
    rows = _read_directly(inner[0])
    if equation.primitive.name == "scan":
        carried = carried_inputs(equation.params)
        for _ in range(carried.stop - carried.start):  # what is carried reads what it was
            rows = [
                (
                    numbers.union(*(rows[number - carried.start][0] for number in back)),
                    is_gradient or any(rows[number - carried.start][1] for number in back),
                )
                for numbers, is_gradient in rows
                for back in [[n for n in numbers if carried.start <= n < carried.stop]]
            ]
    return rows if len(rows) == len(equation.outvars) else opaque


def requested_collectives(closed_jaxpr: Any) -> tuple[RequestedCollective, ...]:
    """Every collective of a traced program, in its order."""
    return tuple(_of(closed_jaxpr.jaxpr, "", 1, None))


def _of(
    jaxpr: Any, scope: str, times: int | None, caller: SourceLine | None
) -> Iterator[RequestedCollective]:
    for equation in jaxpr.eqns:
        kind = _kind(equation)
        called = () if kind is not None else tuple(jaxprs_in_params(equation.params))
        # A kernel's own jaxpr runs within one device. Source and scope of other equations, the
        # majority, are not read: that takes long.
        if kind is None and (not called or equation.primitive.name == "pallas_call"):
            continue
        source = source_of(equation) or caller
        inner = f"{scope}/{equation.source_info.name_stack}".strip("/")
        if kind is not None:
            yield RequestedCollective(
                kind=kind,
                op_name=f"{inner}/{equation.primitive.name}".strip("/"),
                shapes=tuple(_shape(operand.aval) for operand in equation.invars),
                executions=times,
                source=source,
            )
        for inner_jaxpr in called:
            yield from _of(inner_jaxpr, inner, _times(equation, times), source)


def _kind(equation: Any) -> str | None:
    name = str(equation.primitive.name)
    for prefix in _BEFORE:
        name = name.removeprefix(prefix)
    for suffix in _BEHIND:
        name = name.removesuffix(suffix)
    kind = _KINDS.get(name)
    return kind if kind is not None and _names_axes(equation) else None


def _names_axes(equation: Any) -> bool:
    """Whether devices take part; vmap makes a psum one over dimensions of the array."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    named = axes if isinstance(axes, tuple) else (axes,)
    return any(not isinstance(axis, int) for axis in named)


def _times(equation: Any, times: int | None) -> int | None:
    """How often what an equation calls runs in a step; None if unknown."""
    name = equation.primitive.name
    if times is None or name in ("while", "cond"):
        return None
    return times * int(equation.params["length"]) if name == "scan" else times


def _shape(aval: Any) -> str:
    """`bfloat16[8,16]`, of one device."""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
