"""Calls of a step that have another form with equal results: where they are, and how large."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import CellType, FrameType, FunctionType
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from xlapipe.compile.lowering.batch_axis import (
    MEAN,
    ROWS,
    SAME,
    BatchAxis,
    BatchPart,
    Kind,
    are_equal,
)
from xlapipe.compile.lowering.forward_graph import FormSite, PolicySite
from xlapipe.compile.lowering.jaxprs import equations, size_bytes
from xlapipe.compile.lowering.names import is_user_code
from xlapipe.compile.lowering.pasted import loss_in_blocks, vmap_in_blocks
from xlapipe.compile.lowering.policy_change import LOSS, MICROBATCHES, VMAP

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_VMAP = inspect.signature(jax.vmap)
_TAKEN = ("fun", "in_axes", "out_axes")
# Bits of these generators depend on how many keys are mapped.
_RBG = "rbg"
# The first proof compares the batch with one of so many parts.
_PARTS = 2
Place = tuple[str, int]


class Gradient(NamedTuple):
    """A call of a gradient, perhaps `of` the gradient of another function.

    `loss` is what is differentiated, by the arguments at the positions `given`.
    """

    of: Callable[[Callable[..., Any]], Callable[..., Any]]
    loss: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    given: Sequence[int]

    def opened(self) -> tuple["Gradient", tuple[str, ...]]:
        """With variables that the function closes over as last arguments, and their names.

        Those are taken whose arrays have first axes of one size, as a batch has.
        """
        code, closure = getattr(self.loss, "__code__", None), getattr(self.loss, "__closure__", ())
        if not inspect.isfunction(self.loss) or code is None or not closure:
            return self, ()
        function, cells = self.loss, dict(zip(code.co_freevars, closure, strict=True))
        values = {}
        for name, cell in cells.items():
            with suppress(ValueError):  # a cell without content
                if any(isinstance(leaf, jax.core.Tracer) for leaf in _leaves(cell.cell_contents)):
                    values[name] = cell.cell_contents
        values = {name: value for name, value in values.items() if len(_sizes(value)) == 1}

        def call(*args: Any, **kwargs: Any) -> Any:
            count = len(args) - len(values)
            own = dict(zip(values, map(CellType, args[count:]), strict=True))
            cells_of_call = tuple({**cells, **own}[name] for name in code.co_freevars)
            same = FunctionType(
                code, function.__globals__, function.__name__, function.__defaults__, cells_of_call
            )
            same.__kwdefaults__ = function.__kwdefaults__
            return same(*args[:count], **kwargs)

        given = [position % len(self.args) for position in self.given]
        args = (*self.args, *values.values())
        opened = self._replace(loss=call if values else function, args=args, given=given)
        return opened, tuple(values)


class Forms:
    """The calls that were recorded; those without another form have no site."""

    def __init__(self) -> None:
        self._sites: dict[tuple[str, Place], FormSite | None] = {}

    def sites(self) -> tuple[FormSite, ...]:
        return tuple(site for site in self._sites.values() if site is not None)

    def add_vmap(
        self,
        place: Place,
        fun: Callable[..., Any],
        as_written: Callable[..., Any],
        options: Sequence[Any],
        named: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Adds a call of what `jax.vmap(fun, *options, **named)` returned."""
        given = _VMAP.bind(fun, *options, **named).arguments
        try:
            site = _vmap_site(place, fun, as_written, given, args, kwargs)
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises
            site = FormSite(VMAP, *place, 0, 0, refused=first_line(error))
        before = self._sites.get((VMAP, place))
        if site is not None and before is not None:  # one that is refused stays
            site = max(before, site, key=lambda own: (bool(own.refused), own.largest_bytes))
        self._sites[VMAP, place] = site or before

    def add_gradient(self, called: PolicySite, gradient: Gradient) -> None:
        """Adds a call of what `jax.grad` returned, with the reason if it has no other form."""
        place = (called.source, 0)
        shift = called.function.startswith("eqx.")  # which splits the first argument in two
        opened, closed_over = gradient.opened()
        count = len(gradient.args)
        for kind, proof_of in ((MICROBATCHES, proof_of_mean), (LOSS, proof_of_loss)):
            proof = proof_of(opened, _PARTS)
            names = tuple(closed_over[n - count] for n in proof.batch if n >= count)
            batch = [position - shift for position in proof.batch if position < count]
            batch += range(count - shift, count - shift + len(names))
            refused = proof.refused
            if (kind, place) in self._sites:
                refused = "several calls on the line"
            self._sites[kind, place] = FormSite(
                kind,
                *place,
                proof.size,
                proof.bytes,
                called.function,
                tuple(batch),
                refused,
                names,
                mean=proof.mean,
            )


class Proof(NamedTuple):
    """Whether a function of a batch is the mean, or the sum, of those of its parts.

    Attributes:
      batch: positions of the arguments whose leaves' first axis is the batch.
      size: of the batch.
      bytes: of the largest value with the batch.
      refused: why it is not proved; empty if it is.
      mean: whether it is the mean of its parts, else their sum.
    """

    batch: tuple[int, ...]
    size: int
    bytes: int
    refused: str
    mean: bool = True


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = jax.tree.leaves(value)
    return leaves


def _sizes(value: Any) -> set[int]:
    """Sizes of the first axes of its arrays; 0 for what has none."""
    return {leaf.shape[0] if getattr(leaf, "shape", ()) else 0 for leaf in _leaves(value)}


def _proof(
    compare: Callable[[Gradient, Sequence[int], int], tuple[int, str, bool]],
) -> Callable[[Gradient, int], Proof]:
    """A proof for a gradient and a number of parts: of the first batch for which it holds."""

    def proof_of(gradient: Gradient, parts: int) -> Proof:
        args = gradient.args
        differentiated = {position % len(args) for position in gradient.given}
        sizes = {n: _sizes(arg) for n, arg in enumerate(args) if n not in differentiated}
        counts = Counter(next(iter(own)) for own in sizes.values() if len(own) == 1)
        proofs = []
        for size, _ in counts.most_common():
            batch = tuple(n for n, own in sizes.items() if own == {size})
            if size < 2 or size % parts:
                continue
            try:
                proofs.append(Proof(batch, size, *compare(gradient, batch, parts)))
            except Exception as error:  # noqa: BLE001  # whatever the user's function raises of a part
                proofs.append(Proof(batch, size, 0, first_line(error)))
            if not proofs[-1].refused:
                return proofs[-1]
        reason = (
            "of the positional arguments and the variables that the function closes over, but the "
            f"weights, none has a batch that is divisible by {parts}"
        )
        return proofs[0] if proofs else Proof((), 0, 0, reason)

    return proof_of


@_proof
def proof_of_mean(gradient: Gradient, batch: Sequence[int], parts: int) -> tuple[int, str, bool]:
    """Compares a gradient of the batch with that of a part: all results are means."""

    def of(values: Any) -> Any:
        whole = [jax.tree.map(lambda leaf: leaf, argument) for argument in gradient.args]
        for n, value in zip(batch, values, strict=True):
            whole[n] = value
        return gradient.of(gradient.loss)(*whole, **gradient.kwargs)

    def part(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct((leaf.shape[0] // parts, *leaf.shape[1:]), leaf.dtype)

    values = [gradient.args[n] for n in batch]
    whole = jax.make_jaxpr(of)(values)
    of_part = jax.make_jaxpr(of)(jax.tree.map(part, values))
    given, expected = [ROWS] * len(whole.in_avals), [MEAN] * len(whole.out_avals)
    return (*_compared(whole, of_part, given, expected, parts, _size(gradient, batch)), True)


@_proof
def proof_of_loss(gradient: Gradient, batch: Sequence[int], parts: int) -> tuple[int, str, bool]:
    """Compares what follows the largest product, and its gradient, for the batch and a part.

    The loss is a mean, and so is the gradient of weights; that of a value with the batch is `parts`
    times the rows of the whole. Or it is a sum, of which that gradient is the rows.
    """
    pasted: Any = loss_in_blocks
    _, whole, *_ = pasted.cut_at_product(gradient.loss, 1, batch, gradient.args, gradient.kwargs)
    _, of_part, split, _ = pasted.cut_at_product(
        gradient.loss, parts, batch, gradient.args, gradient.kwargs
    )
    floats = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in whole.in_avals]

    def with_gradient(closed: Any) -> Any:
        def of(*values: Any) -> Any:
            own = [value for value, is_float in zip(values, floats, strict=True) if is_float]

            def function(*own: Any) -> Any:
                left = iter(own)
                pairs = zip(values, floats, strict=True)
                return pasted.evaluated(closed, [next(left) if f else v for v, f in pairs])

            results, pull = jax.vjp(function, *own)
            first, *others = results
            return results, pull([jnp.ones_like(first), *map(jnp.zeros_like, others)])

        return jax.make_jaxpr(of)(
            *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals)
        )

    if any(aval.shape for aval in whole.out_avals):
        return 0, "the function also returns an array", True
    given = [ROWS if n in split else SAME for n in range(len(floats))]
    size = _size(gradient, batch)
    if any(whole.in_avals[n].shape[axis] % size for n, axis in split.items()):
        return 0, "examples are grouped before the largest product", True
    traced = with_gradient(whole), with_gradient(of_part)

    def compared(degree: int) -> tuple[int, str]:
        rows, added = BatchPart(Kind.ROWS, degree), BatchPart(Kind.SUM, degree)
        gradients = [rows if n in split else added for n, is_float in enumerate(floats) if is_float]
        expected = [*(added for _ in whole.out_avals), *gradients]
        return _compared(*traced, given, expected, parts, size)

    as_mean, as_sum = compared(1), compared(0)
    return (*as_sum, False) if as_mean[1] and not as_sum[1] else (*as_mean, True)


def _size(gradient: Gradient, batch: Sequence[int]) -> int:
    (size,) = _sizes([gradient.args[n] for n in batch])
    return size


def _compared(
    whole: Any,
    part: Any,
    inputs: Sequence[BatchPart],
    expected: Sequence[BatchPart],
    parts: int,
    size: int,
) -> tuple[int, str]:
    """The bytes of the largest value with the batch, and what differs from what is expected."""
    if whole.effects:
        return 0, f"side effects: {whole.effects}"
    axis = BatchAxis(parts, size)
    outputs = axis.outputs(whole, part, inputs)
    for output, wanted, aval in zip(outputs, expected, whole.out_avals, strict=True):
        is_same = output == SAME and wanted == MEAN
        is_right = output == wanted or is_same or output.kind is Kind.ZERO
        if not is_right or not jnp.issubdtype(aval.dtype, jnp.inexact):
            return 0, axis.mixed_by or "a result is not the mean over the batch"
    return axis.largest_bytes, ""


def differing_iterations(body: Callable[..., Any], carry: Any, items: Sequence[Any]) -> str:
    """Why a scan, which traces its body once, would compute something else than the loop.

    Each iteration is traced: it must be the same program of the same captured values.
    """
    count = len(jax.tree.leaves(items[0]))
    first, *others = [
        jax.make_jaxpr(lambda carry, item: (body(carry, item), item))(carry, item) for item in items
    ]
    if any(isinstance(leaf, float) for leaf in jax.tree.leaves(items)):
        return "the items of the loop have numbers of Python"
    if [*first.jaxpr.outvars][-count:] != [*first.jaxpr.invars][-count:]:
        return "an iteration of the loop changes its item"
    text = _ADDRESS.sub("", str(first.jaxpr))
    if any(
        text != _ADDRESS.sub("", str(other.jaxpr)) or not are_equal(first.consts, other.consts)
        for other in others
    ):
        return "iterations of the loop differ in more than their items"
    return ""


def place_of(frame: FrameType) -> Place | None:
    """`file:line` and column of the call that a frame of the user's makes; None for others."""
    if not is_user_code(frame.f_code.co_filename):
        return None
    positions = inspect.getframeinfo(frame, context=0).positions
    column = positions.col_offset if positions is not None else None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", column or 0


def _vmap_site(
    place: Place,
    fun: Callable[..., Any],
    as_written: Callable[..., Any],
    given: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> FormSite | None:
    """None for a call of constants."""
    axes, out_axes = given.get("in_axes", 0), given.get("out_axes", 0)
    closed, outputs = jax.make_jaxpr(lambda: as_written(*args, **kwargs), return_shape=True)()
    values = [*closed.consts, *_leaves((args, kwargs))]
    if not any(isinstance(value, jax.core.Tracer) for value in values):
        return None
    given_axes = (axes if isinstance(axes, int) else tuple(axes), 0)
    whole: Any = jax.tree.broadcast(given_axes, (tuple(args), kwargs), is_leaf=lambda a: a is None)
    leaves = jax.tree.leaves(whole, is_leaf=lambda a: a is None)
    pairs = zip(_leaves((args, kwargs)), leaves, strict=True)
    sizes = {leaf.shape[axis] for leaf, axis in pairs if axis is not None}
    (size,) = sizes or {int(given["axis_size"])}
    returned = {id(variable) for variable in closed.jaxpr.outvars}
    largest_bytes, refused = 0, ""
    for equation in equations(closed.jaxpr):
        is_rbg = any(_RBG in str(getattr(v.aval, "dtype", "")) for v in equation.invars)
        if is_rbg or equation.primitive.name.startswith("rng_"):
            refused = "bits of rbg's keys depend on how many are mapped"
        for variable in equation.outvars:
            if size in getattr(variable.aval, "shape", ()) and id(variable) not in returned:
                largest_bytes = max(largest_bytes, size_bytes(variable.aval))
    options = [name for name in given.keys() - {*_TAKEN} if given[name] is not None]
    if closed.effects or options:
        refused = f"{', '.join(options)} is given" if options else "it has side effects"
    elif not refused:
        pasted: Any = vmap_in_blocks
        in_blocks = pasted.vmap_in_blocks(fun, axes, out_axes, batch_size=1)
        try:
            if jax.eval_shape(lambda: in_blocks(*args, **kwargs)) != outputs:
                refused = "its results have other shapes"
        except Exception as error:  # noqa: BLE001  # what cannot be traced in blocks
            refused = first_line(error)
    return FormSite(VMAP, *place, size, largest_bytes, refused=refused)
