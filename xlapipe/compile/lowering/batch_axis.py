"""Whether a function of a batch is the mean of the same function of equal parts of it.

The function is traced for the batch and for a part of it: two jaxprs of the same equations, in
which exactly the sizes that follow the batch differ. Rules of jax's primitives say of each value
what its value for a part is. What no rule covers is `MIXED`: it may depend on several examples.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from math import isclose, prod
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from xlapipe.compile.lowering.jaxprs import carried_inputs, size_bytes, user_line


def are_equal(captured: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether constants of two jaxprs are the same; of tracers, the same objects."""
    of_part = BatchAxis(1)
    pairs = zip(captured, others, strict=False)
    return len(captured) == len(others) and all(of_part.constant(*p) in (SAME, ZERO) for p in pairs)


class Kind(Enum):
    ZERO = auto()
    SAME = auto()
    ROWS = auto()
    SUM = auto()
    MIXED = auto()


class BatchPart(NamedTuple):
    """What the value for a part is, of `parts` parts.

    Attributes:
      kind: `SAME` as that for the whole, `ROWS` of it along the axis in which the shapes differ,
        `SUM`: all parts' values add up to it. All are multiplied by `parts ** degree`.
    """

    kind: Kind
    degree: int = 0


ZERO, MIXED = BatchPart(Kind.ZERO), BatchPart(Kind.MIXED)
SAME, ROWS, MEAN = BatchPart(Kind.SAME), BatchPart(Kind.ROWS), BatchPart(Kind.SUM, 1)
_ALIKE = {Kind.ZERO, Kind.SAME}
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call"}
_CALLS |= {"custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"}
# Elementwise: linear, and any function.
_LINEAR = {"convert_element_type", "neg", "copy", "copy_p", "real", "imag", "name", "mul", "div"}
_LINEAR |= {"device_put", "reduce_precision", "optimization_barrier", "add", "add_any", "sub"}
_LINEAR |= {"sharding_constraint", "pvary", "stop_gradient"}
_OF_ELEMENTS = """
abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
clamp clz cos cosh digamma eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow
is_finite le lgamma log log1p log2 logistic lt max min ne nextafter not one_minus_square or
polygamma population_count pow rem round rsqrt shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square tan tanh xor zeta
"""
_ELEMENTS = frozenset(_OF_ELEMENTS.split())
_REDUCED = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
_REDUCED |= {"argmax", "argmin", "reduce_xor"}
_ALONG = {"cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp", "sort", "split", "top_k"}
_PROPORTIONAL = {"reduce_sum", "cumsum", "split"}
# Their results of zeros need not be zeros.
_NOT_ZERO = {"sort", "top_k", "argmax", "argmin", "iota"}


class BatchAxis:
    """The values of a jaxpr and of its part; `largest_bytes` are of the largest with the axis.

    `mixed_by` is the first equation whose results no rule covers, as `primitive at file:line`.
    """

    def __init__(self, parts: int, size: int = 1) -> None:
        """Splits a batch of `size` examples into `parts` parts.

        A part may be every nth example, so an axis of rows has a multiple of the size: neighbours
        of a batch that is reshaped to pairs are not neighbours in a part.
        """
        self._parts, self._size = parts, size
        self.largest_bytes = 0
        self.mixed_by = ""

    def outputs(self, whole: Any, part: Any, inputs: Sequence[BatchPart]) -> list[BatchPart]:
        """The results of a closed jaxpr and of its part."""
        consts = [self.constant(a, b) for a, b in zip(whole.consts, part.consts, strict=True)]
        return self._jaxpr(whole.jaxpr, part.jaxpr, [*consts, *inputs])

    def constant(self, whole: Any, part: Any) -> BatchPart:
        """What a constant is, or a captured value."""
        if whole is part:
            return SAME
        try:
            a, b = np.asarray(whole), np.asarray(part)
        except Exception:  # noqa: BLE001  # a tracer of the same value, or another one
            return MIXED
        if a.shape != b.shape or a.dtype != b.dtype:
            return MIXED
        if not np.any(a) and not np.any(b):
            return ZERO
        if np.all((a == b) | ((a != a) & (b != b))):  # NaN
            return SAME
        if a.ndim:
            return MIXED
        for degree in (-2, -1, 1, 2):
            if isclose(float(b), float(a) * self._parts**degree, rel_tol=1e-6):
                return BatchPart(Kind.SAME, degree)
        return MIXED

    def _jaxpr(self, whole: Any, part: Any, inputs: Sequence[BatchPart]) -> list[BatchPart]:
        whole_vars = (*whole.constvars, *whole.invars)
        known: dict[Any, BatchPart] = dict(zip(whole_vars, inputs, strict=True))

        def read(a: Any, b: Any) -> BatchPart:
            if isinstance(a, Literal) != isinstance(b, Literal):
                return MIXED
            return self.constant(a.val, b.val) if isinstance(a, Literal) else known[a]

        if len(whole.eqns) != len(part.eqns):
            return [MIXED] * len(whole.outvars)
        for a, b in zip(whole.eqns, part.eqns, strict=True):
            values = [read(*pair) for pair in zip(a.invars, b.invars, strict=True)]
            results = self._equation(a, b, values)
            for out, other, result in zip(a.outvars, b.outvars, results, strict=True):
                known[out] = self._checked(a, out.aval, other.aval, result)
        return [read(*pair) for pair in zip(whole.outvars, part.outvars, strict=True)]

    def _checked(self, equation: Any, whole: Any, part: Any, result: BatchPart) -> BatchPart:
        """The result, if the shapes differ where it says."""
        axis = self._axis(whole, part)
        is_whole = isinstance(axis, int) and whole.shape[axis] % self._size == 0
        if result.kind is Kind.ROWS and is_whole:
            self.largest_bytes = max(self.largest_bytes, size_bytes(whole))
            return result
        right = (axis is None) if result.kind in (Kind.SAME, Kind.SUM) else axis != "several"
        if result.kind in (Kind.ROWS, Kind.MIXED) or not right:
            self.mixed_by = self.mixed_by or equation.primitive.name
            if " at " not in self.mixed_by and (line := user_line(equation)) is not None:
                self.mixed_by += f" at {line}"  # of the call that it is in, if it has no line
            return MIXED
        return result

    def _axis(self, whole: Any, part: Any) -> int | str | None:
        """In which the shapes differ; None for equal shapes."""
        a, b = getattr(whole, "shape", ()), getattr(part, "shape", ())
        if len(a) != len(b) or getattr(whole, "dtype", None) != getattr(part, "dtype", None):
            return "several"
        differ = [n for n, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if not differ:
            return None
        fits = len(differ) == 1 and a[differ[0]] == b[differ[0]] * self._parts
        return differ[0] if fits else "several"

    def _equation(self, a: Any, b: Any, values: list[BatchPart]) -> list[BatchPart]:
        name, count = a.primitive.name, len(a.outvars)
        mixed = [MIXED] * count
        if name != b.primitive.name or len(values) != len(b.invars) or a.effects:
            return mixed
        if MIXED in values:
            return mixed
        if name == "scan":
            return self._scan(a, b, values)
        if name in _CALLS:
            body, other = (
                next(e.params[key] for key in _BODIES if key in e.params) for e in (a, b)
            )
            if hasattr(body, "consts"):
                return self.outputs(body, other, values)
            return self._jaxpr(body, other, values)
        axes = [self._axis(x.aval, y.aval) for x, y in zip(a.invars, b.invars, strict=True)]
        out = self._axis(a.outvars[0].aval, b.outvars[0].aval) if count else None
        if "several" in (*axes, out):
            return mixed
        alike = all(
            value.kind in _ALIKE and axis is None for value, axis in zip(values, axes, strict=True)
        )
        if alike and out is None and not any(v.degree for v in values):
            equal = str(a.params) == str(b.params)
            linear = name in _LINEAR or (name in _STRUCTURE and name not in _NOT_ZERO)
            zero = values and linear and all(v.kind is Kind.ZERO for v in values)
            return [(ZERO if zero else SAME) if equal else MIXED] * count
        if name == "optimization_barrier":
            return values
        if name in _LINEAR or name == "select_n":
            return [_elements(name, values)] * count
        if name in _ELEMENTS:
            plain = all(v.degree == 0 and v.kind is not Kind.SUM for v in values)
            return [(ROWS if out is not None else SAME) if plain else MIXED] * count
        rule = _STRUCTURE.get(name)
        if rule is not None:
            return [rule(_Equation(a, b, values, axes, out))] * count
        return mixed

    def _scan(self, a: Any, b: Any, values: list[BatchPart]) -> list[BatchPart]:
        if any(a.params[key] != b.params[key] for key in ("length", "reverse")):
            return [MIXED] * len(a.outvars)
        carried = carried_inputs(a.params)
        inputs = list(values)
        for _ in range(len(inputs) + 2):
            results = self.outputs(a.params["jaxpr"], b.params["jaxpr"], inputs)
            joined = [
                _elements("add", [before, after])  # what is either of two
                for before, after in zip(inputs[carried], results, strict=False)
            ]
            if joined == inputs[carried]:
                return results
            inputs[carried] = joined
        return [MIXED] * len(a.outvars)


class _Equation(NamedTuple):
    """An equation and that of the part; of each operand what it is, and the axis of the batch."""

    whole: Any
    part: Any
    values: Sequence[BatchPart]
    axes: Sequence[Any]
    out: Any

    @property
    def params(self) -> Mapping[str, Any]:
        params: Mapping[str, Any] = self.whole.params
        return params

    def shape(self, number: int) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.whole.invars[number].aval.shape
        return shape

    def plain(self, *numbers: int) -> bool:
        """Whether operands are the same, or rows, without a factor."""
        own = [self.values[n] for n in numbers]
        return all(v.degree == 0 and v.kind is not Kind.SUM for v in own)


def _elements(name: str, values: Sequence[BatchPart]) -> BatchPart:
    """Sums, products and choices of elements."""
    if name == "select_n":
        if values[0].kind not in (*_ALIKE, Kind.ROWS) or values[0].degree:
            return MIXED
        chosen = values[1]
        for other in values[2:]:
            chosen = _elements("add", [chosen, other])
        if values[0].kind is Kind.ROWS:
            chosen = _elements("mul", [ROWS, chosen])
        return chosen
    if len(values) == 1:
        return values[0]
    a, b = values
    if name in ("mul", "div"):
        if a.kind is Kind.ZERO or (b.kind is Kind.ZERO and name == "mul"):
            return ZERO
        degree = a.degree + (b.degree if name == "mul" else -b.degree)
        kinds = {a.kind, b.kind} - {Kind.SAME, Kind.ZERO}
        if Kind.SUM in kinds and (
            len(kinds) > 1 or a.kind == b.kind or (b.kind is Kind.SUM and name == "div")
        ):
            return MIXED
        return BatchPart(kinds.pop() if kinds else Kind.SAME, degree)
    if Kind.ZERO in (a.kind, b.kind):
        return b if a.kind is Kind.ZERO else a
    if {a.kind, b.kind} == {Kind.SAME, Kind.SUM}:  # every part adds what is the same
        total, same = (a, b) if a.kind is Kind.SUM else (b, a)
        return total if total.degree == same.degree + 1 else MIXED
    if a.degree != b.degree or {a.kind, b.kind} == {Kind.ROWS, Kind.SUM}:
        return MIXED
    return BatchPart(Kind.ROWS if Kind.ROWS in (a.kind, b.kind) else a.kind, a.degree)


def _moved(kept: Callable[[_Equation, int], bool]) -> Callable[[_Equation], BatchPart]:
    """A rule for an operand whose elements are moved, if `kept` says that its axis stays whole."""

    def rule(e: _Equation) -> BatchPart:
        value, axis = e.values[0], e.axes[0]
        if not all(
            v.kind is Kind.ZERO or (v.kind is Kind.SAME and not v.degree) for v in e.values[1:]
        ):
            return MIXED
        return value if axis is None or kept(e, axis) else MIXED

    return rule


def _reshape(e: _Equation, axis: int) -> bool:
    shape = e.whole.outvars[0].aval.shape
    return e.out is not None and prod(e.shape(0)[:axis]) == prod(shape[: e.out])


def _broadcast(e: _Equation) -> BatchPart:
    value, axis, to = e.values[0], e.axes[0], e.params["broadcast_dimensions"]
    if axis is not None:
        return value if to[axis] == e.out else MIXED
    if e.out is None:
        return value
    is_new = e.out not in to or e.shape(0)[to.index(e.out)] == 1
    if value.kind is Kind.SUM or not is_new:
        return MIXED
    return value if value.kind is Kind.ZERO else BatchPart(Kind.ROWS, value.degree)


def _reduced(e: _Equation) -> BatchPart:
    value, axis = e.values[0], e.axes[0]
    proportional = e.whole.primitive.name in _PROPORTIONAL
    if not (proportional or e.plain(0)):
        return MIXED
    if axis is None or axis not in e.params["axes"]:
        return value
    if value.kind is Kind.ZERO:
        return ZERO if proportional else MIXED
    return BatchPart(Kind.SUM, value.degree) if proportional else MIXED


def _along(e: _Equation) -> BatchPart:
    name = e.whole.primitive.name
    if name not in _PROPORTIONAL and not e.plain(*range(len(e.values))):
        return MIXED
    axes = [e.params[key] for key in ("axis", "dimension") if key in e.params]
    last = len(e.shape(0)) - 1
    along = axes[0] % (last + 1) if axes else last
    if any(axis == along for axis in e.axes):
        return MIXED
    if name in _NOT_ZERO:
        return ROWS if e.out is not None else SAME
    return e.values[0]


def _concatenate(e: _Equation) -> BatchPart:
    if e.out == e.params["dimension"]:
        return MIXED
    total = e.values[0]
    for value in e.values[1:]:
        total = _elements("add", [total, value])
    return total


def _pad(e: _Equation) -> BatchPart:
    axis = e.axes[0]
    if axis is not None and tuple(e.params["padding_config"][axis]) != (0, 0, 0):
        return MIXED
    return _elements("add", e.values)


def _update(e: _Equation) -> BatchPart:
    if e.axes[0] != e.axes[1] or not all(v.kind in _ALIKE and not v.degree for v in e.values[2:]):
        return MIXED
    axis = e.axes[0]
    if axis is not None and e.shape(0)[axis] != e.shape(1)[axis]:
        return MIXED
    return _elements("add", e.values[:2])


def _dot(e: _Equation) -> BatchPart:
    (contracted, batch) = e.params["dimension_numbers"]
    left, right = e.values
    if Kind.ZERO in (left.kind, right.kind):
        return ZERO
    product = _elements("mul", e.values)
    if product.kind is not Kind.ROWS:
        return product
    if None in e.axes:
        number = 1 if e.axes[0] is None else 0
        free = e.axes[number] not in (*contracted[number], *batch[number])
        return product if free else MIXED
    for (lefts, rights), kind in ((contracted, Kind.SUM), (batch, Kind.ROWS)):
        if (e.axes[0], e.axes[1]) in zip(lefts, rights, strict=True):
            return BatchPart(kind, product.degree)
    return MIXED


def _convolution(e: _Equation) -> BatchPart:
    lhs, rhs, out = e.params["dimension_numbers"]
    grouped = e.params["feature_group_count"] * e.params["batch_group_count"] != 1
    product = _elements("mul", e.values)
    if Kind.ZERO in (product.kind, e.values[1].kind):
        return ZERO
    if product.kind is not Kind.ROWS:
        return product
    if e.axes[0] == lhs[0] and e.axes[1] is None and e.out == out[0]:
        return product if e.params["batch_group_count"] == 1 else MIXED
    if e.axes[0] == lhs[1] and e.axes[1] == rhs[1] and not grouped:
        return BatchPart(Kind.SUM, product.degree)
    return MIXED


def _gather(e: _Equation) -> BatchPart:
    d, operand = e.params["dimension_numbers"], e.values[0]
    table, rows = e.axes
    if not e.plain(1):
        return MIXED
    if rows is None:
        if table is None:
            return operand
        moved = {*d.start_index_map, *d.collapsed_slice_dims, *d.operand_batching_dims}
        is_whole = table not in moved and e.params["slice_sizes"][table] == e.shape(0)[table]
        return operand if is_whole else MIXED
    if e.out is None or e.out in d.offset_dims or rows == len(e.shape(1)) - 1:
        return MIXED
    if table is None:
        return _elements("mul", [ROWS, operand])
    pairs = zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True)
    return operand if (table, rows) in pairs else MIXED


def _scatter_add(e: _Equation) -> BatchPart:
    d = e.params["dimension_numbers"]
    operand, _, updates = e.values
    table, rows, added = e.axes
    if not e.plain(1):
        return MIXED
    if updates.kind is Kind.ZERO:
        return operand
    if rows is None and added is None:
        return _elements("add", [operand, updates])
    if rows is None:
        moved = {*d.scatter_dims_to_operand_dims, *d.inserted_window_dims, *d.operand_batching_dims}
        is_window = table is not None and table not in moved and added in d.update_window_dims
        return _elements("add", [operand, updates]) if is_window else MIXED
    if added is None or added in d.update_window_dims or updates.kind is not Kind.ROWS:
        return MIXED
    if table is None:
        return _elements("add", [operand, BatchPart(Kind.SUM, updates.degree)])
    pairs = zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True)
    return _elements("add", [operand, updates]) if (table, rows) in pairs else MIXED


def _iota(e: _Equation) -> BatchPart:
    return ROWS if e.out is not None and e.params["dimension"] != e.out else MIXED


def _full(*keys: str) -> Callable[[_Equation, int], bool]:
    """Whether an axis is not among the dimensions that parameters name."""
    return lambda e, axis: all(axis not in e.params[key] for key in keys)


def _slice(e: _Equation, axis: int) -> bool:
    start, limit, strides = (e.params[k] for k in ("start_indices", "limit_indices", "strides"))
    is_whole = start[axis] == 0 and limit[axis] == e.shape(0)[axis]
    return is_whole and (strides is None or strides[axis] == 1)


_STRUCTURE: Mapping[str, Callable[[_Equation], BatchPart]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _moved(lambda e, axis: e.params["slice_sizes"][axis] == e.shape(0)[axis]),
    "dynamic_update_slice": _update,
    "expand_dims": _broadcast,
    "gather": _gather,
    "iota": _iota,
    "pad": _pad,
    "reshape": _moved(_reshape),
    "rev": _moved(_full("dimensions")),
    "scatter-add": _scatter_add,
    "slice": _moved(_slice),
    "squeeze": _moved(_full("dimensions")),
    "transpose": _moved(lambda e, axis: e.params["permutation"][e.out] == axis),
    **dict.fromkeys(_REDUCED, _reduced),
    **dict.fromkeys(_ALONG, _along),
}
