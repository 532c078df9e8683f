"""Calls of a step that have another form with equal results: where they are, and how large."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from xlapipe.compile.lowering.batch_axis import MEAN, ROWS, SAME, BatchAxis, BatchPart, Kind
from xlapipe.compile.lowering.forward_graph import FormSite, PolicySite
from xlapipe.compile.lowering.jaxprs import equations, size_bytes
from xlapipe.compile.lowering.names import is_user_code
from xlapipe.compile.lowering.pasted import loss_in_blocks, vmap_in_blocks
from xlapipe.compile.lowering.policy_change import LOSS, MICROBATCHES, VMAP

_VMAP = inspect.signature(jax.vmap)
_TAKEN = ("fun", "in_axes", "out_axes")
# Bits of these generators depend on how many keys are mapped.
_RBG = "rbg"
# The first proof compares the batch with one of so many parts.
_PARTS = 2
Place = tuple[str, int]


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
        before = self._sites.get((VMAP, place), FormSite(VMAP, *place, 0, 0))
        given = _VMAP.bind(fun, *options, **named).arguments
        site = None
        if before is not None and all(given[name] is None for name in given.keys() - {*_TAKEN}):
            # What cannot be traced in blocks has no such form.
            with suppress(Exception):
                site = _vmap_site(place, fun, as_written, given, args, kwargs)
        if site is not None and before is not None and site.largest_bytes < before.largest_bytes:
            site = before
        self._sites[VMAP, place] = site

    def add_gradient(
        self,
        called: PolicySite,
        gradient: Callable[..., Any],
        loss: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Sequence[int],
    ) -> None:
        """Adds a call of what `jax.grad` returned, with the reason if it has no other form."""
        place = (called.source, 0)
        shift = called.function.startswith("eqx.")  # which splits the first argument in two
        for kind, proof_of, function in (
            (MICROBATCHES, proof_of_mean, gradient),
            (LOSS, proof_of_loss, loss),
        ):
            proof = proof_of(function, args, kwargs, given, _PARTS)
            batch = tuple(position - shift for position in proof.batch)
            refused = proof.refused
            if (kind, place) in self._sites:
                refused = "several calls on the line"
            self._sites[kind, place] = FormSite(
                kind, *place, proof.size, proof.bytes, called.function, batch, refused
            )


class Proof(NamedTuple):
    """Whether a function of a batch is the mean of those of its parts.

    Attributes:
      batch: positions of the arguments whose leaves' first axis is the batch.
      size: of the batch.
      bytes: of the largest value with the batch.
      refused: why it is not proved; empty if it is.
    """

    batch: tuple[int, ...]
    size: int
    bytes: int
    refused: str


def _proof(compare: Callable[..., tuple[int, str]]) -> Callable[..., Proof]:
    """A proof for a function, its arguments, which are differentiated, and a number of parts."""

    def proof_of(
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Sequence[int],
        parts: int,
    ) -> Proof:
        differentiated = {position % len(args) for position in given}
        sizes = {
            n: {leaf.shape[0] if getattr(leaf, "shape", ()) else 0 for leaf in jax.tree.leaves(arg)}
            for n, arg in enumerate(args)
            if n not in differentiated
        }
        counts = Counter(next(iter(own)) for own in sizes.values() if len(own) == 1)
        (size, _), *_ = counts.most_common(1) or [(0, 0)]
        batch = tuple(n for n, own in sizes.items() if own == {size})
        if size < 2 or size % parts:
            reason = f"no arguments beside the weights have a batch that is divisible by {parts}"
            return Proof((), size, 0, reason)
        try:
            return Proof(batch, size, *compare(function, args, kwargs, batch, parts))
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises of a part
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            return Proof(batch, size, 0, reason)

    return proof_of


@_proof
def proof_of_mean(
    gradient: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batch: Sequence[int],
    parts: int,
) -> tuple[int, str]:
    """Compares a gradient of the batch with that of a part: all results are means."""

    def of(values: Any) -> Any:
        whole = [jax.tree.map(lambda leaf: leaf, argument) for argument in args]
        for n, value in zip(batch, values, strict=True):
            whole[n] = value
        return gradient(*whole, **kwargs)

    def part(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct((leaf.shape[0] // parts, *leaf.shape[1:]), leaf.dtype)

    values = [args[n] for n in batch]
    whole = jax.make_jaxpr(of)(values)
    of_part = jax.make_jaxpr(of)(jax.tree.map(part, values))
    given, expected = [ROWS] * len(whole.in_avals), [MEAN] * len(whole.out_avals)
    return _compared(whole, of_part, given, expected, parts)


@_proof
def proof_of_loss(
    loss: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batch: Sequence[int],
    parts: int,
) -> tuple[int, str]:
    """Compares what follows the largest product, and its gradient, for the batch and a part.

    The loss is a mean, and so is the gradient of weights; that of a value with the batch is `parts`
    times the rows of the whole.
    """
    pasted: Any = loss_in_blocks
    _, whole, *_ = pasted.cut_at_product(loss, 1, batch, args, kwargs)
    _, of_part, split, _ = pasted.cut_at_product(loss, parts, batch, args, kwargs)
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
        return 0, "a result is not a number"
    given = [ROWS if n in split else SAME for n in range(len(floats))]
    gradients = [BatchPart(Kind.ROWS, 1) if n in split else MEAN for n, f in enumerate(floats) if f]
    expected = [*(MEAN for _ in whole.out_avals), *gradients]
    return _compared(with_gradient(whole), with_gradient(of_part), given, expected, parts)


def _compared(
    whole: Any, part: Any, inputs: Sequence[BatchPart], expected: Sequence[BatchPart], parts: int
) -> tuple[int, str]:
    """The bytes of the largest value with the batch, and what differs from what is expected."""
    if whole.effects:
        return 0, f"side effects: {whole.effects}"
    axis = BatchAxis(parts)
    outputs = axis.outputs(whole, part, inputs)
    for output, wanted, aval in zip(outputs, expected, whole.out_avals, strict=True):
        is_same = output == SAME and wanted == MEAN
        is_right = output == wanted or is_same or output.kind is Kind.ZERO
        if not is_right or not jnp.issubdtype(aval.dtype, jnp.inexact):
            return 0, axis.mixed_by or "a result is not the mean over the batch"
    return axis.largest_bytes, ""


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
    axes, out_axes = given.get("in_axes", 0), given.get("out_axes", 0)
    closed, outputs = jax.make_jaxpr(lambda: as_written(*args, **kwargs), return_shape=True)()
    values = [*closed.consts, *jax.tree.leaves((args, kwargs))]
    if closed.effects or not any(isinstance(value, jax.core.Tracer) for value in values):
        return None
    pasted: Any = vmap_in_blocks
    in_blocks = pasted.vmap_in_blocks(fun, axes, out_axes, batch_size=1)
    if jax.eval_shape(lambda: in_blocks(*args, **kwargs)) != outputs:
        return None
    given_axes = (axes if isinstance(axes, int) else tuple(axes), 0)
    whole: Any = jax.tree.broadcast(given_axes, (tuple(args), kwargs), is_leaf=lambda a: a is None)
    leaves = jax.tree.leaves(whole, is_leaf=lambda a: a is None)
    sizes = {
        leaf.shape[axis]
        for leaf, axis in zip(jax.tree.leaves((args, kwargs)), leaves, strict=True)
        if axis is not None
    }
    (size,) = sizes
    returned = {id(variable) for variable in closed.jaxpr.outvars}
    largest_bytes = 0
    for equation in equations(closed.jaxpr):
        if any(_RBG in str(getattr(v.aval, "dtype", "")) for v in equation.invars):
            return None
        if equation.primitive.name.startswith("rng_"):
            return None
        for variable in equation.outvars:
            if size in getattr(variable.aval, "shape", ()) and id(variable) not in returned:
                largest_bytes = max(largest_bytes, size_bytes(variable.aval))
    return FormSite(VMAP, *place, size, largest_bytes)
