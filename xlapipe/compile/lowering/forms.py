"""Calls of a step that have another form with equal results: where they are, and how large."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import jax

from xlapipe.compile.lowering.forward_graph import FormSite
from xlapipe.compile.lowering.jaxprs import equations, size_bytes
from xlapipe.compile.lowering.names import is_user_code
from xlapipe.compile.lowering.pasted import vmap_in_blocks
from xlapipe.compile.lowering.policy_change import VMAP

_VMAP = inspect.signature(jax.vmap)
_TAKEN = ("fun", "in_axes", "out_axes")
# Bits of these generators depend on how many keys are mapped.
_RBG = "rbg"
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
