"""Whether jax compiles a step again when its outputs are passed to the next call.

jax keeps a compiled program under the tree, shapes, dtypes, weak types and places of its arguments.
An output that differs in one of them from the argument that it replaces compiles the step again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.plans.call_facts import CallFacts
from xlapipe.plans.carried import leaves_below
from xlapipe.plans.donation import source_of
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.once import once_per_object
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program, spec_axes, spec_text


class Why(StrEnum):
    """What differs in a leaf."""

    TREE = "tree"
    SHAPE = "shape"
    DTYPE = "dtype"
    WEAK_TYPE = "weak type"
    SHARDING = "sharding"
    PLACE = "place"
    MEMORY = "memory"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Recompile:
    """A leaf that comes back different from what went in."""

    argument: str
    output: str
    was: str
    becomes: str
    why: Why
    source: SourceLine | None
    advice: str
    size_bytes: int = 0

    def __str__(self) -> str:
        at = f": {self.source}" if self.source is not None else ""
        return f"{self.argument} goes in as {self.was} and comes back as {self.becomes}{at}"


@once_per_object
def recompiles(program: Program) -> tuple[Recompile, ...] | None:
    """What compiles the step again at its second call; None if the dump does not record it."""
    return None if program.facts.call is None else tuple(_rows(program, program.facts.call))


def second_call(program: Program) -> str:
    """What the second call does, in words; empty if it compiles nothing, or if that is unknown."""
    rows, facts = recompiles(program) or (), program.facts.call
    if facts is None or not rows:
        return ""
    condition = _condition(program, rows[0])
    if any(row.why is Why.SHARDING and row.argument in facts.fixed for row in rows):
        cause = f"in_shardings= of jax.jit differ: {rows[0]}"
        return f"{condition}the second call fails, since {cause}"
    leaves = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{condition}the second call compiles again: {rows[0]}{leaves}"


def _condition(program: Program, row: Recompile) -> str:
    """That an argument is passed again, where it is not donated: then only names suggest it."""
    if any(leaf.donated for leaf in leaves_below(row.argument, program.arguments).values()):
        return ""
    return f"if {row.output} goes in again as {row.argument}, "


def _rows(program: Program, facts: CallFacts) -> Iterator[Recompile]:
    for change in facts.trees:
        yield Recompile(
            change.argument,
            change.output,
            change.was,
            change.becomes,
            Why.TREE,
            None,
            f"return the argument's own {change.argument}"
            if change.becomes == "another object"
            else f"pass {change.becomes} to the first call, or return {change.was}",
        )
    weak = {*facts.weak_arguments}, {*facts.weak_outputs}
    for argument, output in facts.carried.items():
        outputs = leaves_below(output, program.outputs)
        for rest, leaf in leaves_below(argument, program.arguments).items():
            other = outputs.get(rest)
            if other is not None:
                yield from _leaf_rows(program, facts, leaf, other, weak)


def _leaf_rows(
    program: Program,
    facts: CallFacts,
    leaf: ArgumentLeaf,
    output: OutputLeaf,
    weak: tuple[set[str], set[str]],
) -> Iterator[Recompile]:
    """What differs in the type of a leaf, in its place, and in its layout."""
    for why, was, becomes, advice in (
        *_type_change(leaf, output, leaf.path in weak[0], output.path in weak[1]),
        *_place_change(program, facts, leaf, output),
        *_layout_change(facts, leaf, output),
    ):
        source = source_of(program, output)
        size_bytes = leaf.size_bytes
        yield Recompile(leaf.path, output.path, was, becomes, why, source, advice, size_bytes)


_Change = tuple[Why, str, str, str]


def _type_change(
    leaf: ArgumentLeaf, output: OutputLeaf, was_weak: bool, is_weak: bool
) -> Iterator[_Change]:
    if leaf.shape != output.shape:
        yield (
            Why.SHAPE,
            f"{leaf.dtype}{list(leaf.shape)}",
            f"{output.dtype}{list(output.shape)}",
            "return it with the shape of the argument, padded if it grows",
        )
    elif leaf.dtype != output.dtype:
        advice = f"return it as {leaf.dtype} (x.astype), or pass {output.dtype} to the first call"
        yield Why.DTYPE, leaf.dtype, output.dtype, advice
    elif was_weak and not is_weak:
        advice = f"pass an array to the first call: jnp.asarray(value, jnp.{leaf.dtype})"
        yield Why.WEAK_TYPE, f"weak {leaf.dtype} (a Python number)", output.dtype, advice
    elif is_weak and not was_weak:
        advice = f"return it with a dtype of its own: jnp.asarray(value, jnp.{leaf.dtype})"
        yield Why.WEAK_TYPE, leaf.dtype, f"weak {output.dtype}", advice


def _place_change(
    program: Program, facts: CallFacts, leaf: ArgumentLeaf, output: OutputLeaf
) -> Iterator[_Change]:
    if leaf.memory_kind != output.memory_kind:
        was, becomes = (
            f"{kind or 'device'} memory" for kind in (leaf.memory_kind, output.memory_kind)
        )
        yield Why.MEMORY, was, becomes, "return it in the memory of the argument: jax.device_put"
    unplaced = leaf.path in facts.unplaced
    is_read = leaf.parameter_number is not None
    if not _over_devices(program):
        if unplaced and facts.outputs_placed and is_read:
            yield (
                Why.PLACE,
                "an array on no particular device",
                "an array on the device",
                "place every argument before the first call (jax.device_put(x, device)), or none",
            )
        return
    fixed = leaf.path in facts.fixed
    if leaf.spec is not None and output.spec is not None and (fixed or not unplaced):
        was_spec, spec = (spec_axes(item, program.facts.mesh) for item in (leaf.spec, output.spec))
        if was_spec != spec and (is_read or fixed):
            yield (
                Why.SHARDING,
                spec_text(was_spec),
                spec_text(spec),
                "state the argument's sharding: out_shardings= of jax.jit, or "
                "jax.lax.with_sharding_constraint on the output",
            )
            return
    if unplaced:
        place = spec_text(output.spec)
        yield (
            Why.PLACE,
            "an array without a sharding",
            place,
            f"place it before the first call: jax.device_put(x, NamedSharding(mesh, {place}))",
        )


def _layout_change(facts: CallFacts, leaf: ArgumentLeaf, output: OutputLeaf) -> Iterator[_Change]:
    was, becomes = facts.layouts.get(leaf.path), facts.output_layouts.get(output.path)
    if was != becomes and leaf.shape == output.shape:
        advice = "state the argument's layout: out_shardings=Format(…) of jax.jit"
        yield Why.LAYOUT, _layout_text(was), _layout_text(becomes), advice


def _layout_text(order: str | None) -> str:
    return f"layout {order}" if order else "an array of jax's default layout"


def _over_devices(program: Program) -> bool:
    return any(leaf.spec is not None for leaf in program.outputs)
