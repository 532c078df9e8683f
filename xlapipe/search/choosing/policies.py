"""Policies of `jax.checkpoint` as code: what a user writes is what is compiled."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from xlapipe.compile.lowering.forward_graph import (
    ForwardGraph,
    ForwardValue,
    PolicyKey,
    PolicySite,
    RepeatedCall,
    SideEffect,
)
from xlapipe.compile.lowering.policy_change import BLOCK, CHECKPOINT, GRADIENT, SCAN, PolicyChange
from xlapipe.errors import XlapipeError
from xlapipe.report.units import rounded
from xlapipe.search.candidate import Recomputed, StepChange
from xlapipe.search.choosing.blocks import (
    SOME,
    Some,
    blocks_code,
    blocks_of,
    blocks_text,
    decorators_of,
)
from xlapipe.search.choosing.search import Group, Kept
from xlapipe.time.recomputed import relative

_WHERE = {GRADIENT: "whole gradient", SCAN: "scan bodies", CHECKPOINT: "own jax.checkpoint"}
_PRESETS = {
    "nothing_saveable": "recompute everything",
    "dots_saveable": "keep matrix products",
    "dots_with_no_batch_dims_saveable": "keep matrix products without batch dimensions",
}
# What it keeps is seen where the step has policies of its own.
KEEP_ALL = "keep everything"
# A place whose values are a smaller share of what is saved is not searched.
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class PolicyPlace:
    """Where a step is given a policy.

    Attributes:
      kind: `gradient`, `scan`, `checkpoint` or `block`; see
        `xlapipe.compile.lowering.chosen_policy`.
      sites: the calls; empty for blocks.
      values: those that the policy decides about.
      functions: the blocks; empty for other kinds.
      numbers: of the blocks in the graph.
      searched: whether more than recomputing everything is tried.
      some: which calls of the blocks; None for all.
    """

    kind: str
    sites: tuple[PolicySite, ...]
    values: tuple[ForwardValue, ...]
    functions: tuple[RepeatedCall, ...] = ()
    numbers: tuple[int, ...] = ()
    searched: bool = True
    some: Some | None = None

    @property
    def where(self) -> str:
        some = self.some.text if self.some is not None else "each of"
        return _WHERE.get(self.kind) or f"{some} {blocks_text(self.functions)}"

    @property
    def lines(self) -> tuple[str, ...]:
        """`file:line` of the calls or definitions."""
        calls = (site.source for site in self.sites)
        return (*calls, *(function.source for function in self.functions))

    @property
    def looped(self) -> bool:
        """Whether all of it is in scans that are differentiated."""
        return all(value.loop is not None for value in self.values)

    @property
    def parts(self) -> int:
        """Calls or iterations, of which one is computed again at a time; 0 if unknown."""
        if self.kind == BLOCK:
            return max(function.calls for function in self.functions)
        return max((v.trips for v in self.values), default=0) if self.kind == SCAN else 0

    @property
    def saved_bytes(self) -> int:
        return sum(value.size_bytes for value in self.values if value.needed)

    def computes_again(self, effect: SideEffect) -> bool:
        """Whether a policy here makes a side effect happen once more than in the step as written.

        Under a `jax.checkpoint` of the step itself it may happen twice already.
        """
        if self.kind == BLOCK:
            return not set(self.numbers).isdisjoint(effect.calls)
        if self.kind == SCAN:
            return effect.loop in {site.source for site in self.sites}
        return self.kind == GRADIENT


def places_of(graph: ForwardGraph) -> tuple[PolicyPlace, ...]:
    """The places that hold most of what is saved, those with most bytes first.

    A policy around a gradient does not help the values of a scan, which computes all iterations
    again before the first one is used; the scan's body is the place for them. Where the step calls
    `jax.checkpoint` already, its policy is the place, unless most of what is saved is outside;
    blocks are then only recomputed.
    Functions that are called repeatedly are a place outside of scans: of each, as little as its
    arguments is kept. The parts of them follow, whose values are only recomputed.
    """
    own = tuple(value for value in graph.values if value.differentiated)
    looped = tuple(value for value in own if value.loop is not None)
    calls = {kind: [s for s in graph.sites if s.kind == kind] for kind in (GRADIENT, CHECKPOINT)}
    whole = sum(value.size_bytes for value in own if value.needed)
    places = []
    if calls[CHECKPOINT]:
        inside = looped if sum(v.size_bytes for v in looped if v.needed) > whole / 2 else own
        if graph.decided:
            decided = frozenset(graph.decided)
            inside = tuple(value for value in own if value.key in decided)
        place = PolicyPlace(CHECKPOINT, tuple(calls[CHECKPOINT]), inside)
        if not graph.decided or place.saved_bytes > whole / 2:
            return (place, *(part for part in _block_places(graph, own) if not part.looped))
        places.append(place)
        own = tuple(value for value in own if value.key not in decided)
        looped = tuple(value for value in own if value.loop is not None)
    # The body of a scan is a place already.
    blocks = [place for place in _block_places(graph, own) if not place.looped]
    blocks[:1] = [replace(place, searched=True) for place in blocks[:1]]
    in_blocks = {value.number for place in blocks[:1] for value in place.values}
    looped = tuple(value for value in looped if value.number not in in_blocks)
    lines = {value.loop for value in looped if value.needed}
    scans = tuple(s for s in graph.sites if s.kind == SCAN and s.source in lines)
    outside = tuple(v for v in own if v.loop is None and v.number not in in_blocks)
    places += [
        PolicyPlace(SCAN, scans, tuple(v for v in looped if v.loop in {s.source for s in scans})),
        PolicyPlace(GRADIENT, tuple(calls[GRADIENT]), outside),
        *blocks[:1],
    ]
    if blocks and 2 * blocks[0].saved_bytes > whole:
        places = [place for place in places if place.kind != GRADIENT]
    kept = [p for p in places if p.lines and p.saved_bytes > _LEAST_SHARE * whole]
    some = (own for place in blocks[:1] for own in _some_of(place))
    parts = [p for p in (*blocks[1:], *some) if p.saved_bytes > _LEAST_SHARE * whole]
    return (*sorted(kept, key=lambda place: -place.saved_bytes), *parts)


def _block_places(graph: ForwardGraph, values: Sequence[ForwardValue]) -> Iterator[PolicyPlace]:
    for numbers in blocks_of(graph, values):
        own = tuple(value for value in values if not set(numbers).isdisjoint(value.calls))
        functions = tuple(graph.repeated[number] for number in numbers)
        yield PolicyPlace(BLOCK, (), own, functions, tuple(numbers), searched=False)


def _some_of(place: PolicyPlace) -> Iterator[PolicyPlace]:
    """The places where some calls of a place's blocks are checkpointed."""
    for some in SOME:
        if functions := tuple(some.among(place.functions)):
            yield replace(place, functions=functions, searched=False, some=some)


def no_place_error(workload: str, graphs: Sequence[ForwardGraph]) -> XlapipeError:
    """The reason why a step has no place for a policy."""
    if any(site.kind == GRADIENT for graph in graphs for site in graph.sites):
        return XlapipeError(
            f"{workload}: its gradient keeps no value that a policy decides "
            "about: all are arguments, or residuals that a jax.custom_vjp hides; fix: leave "
            "--remat and --offload out, or give residuals names with checkpoint_name "
            "in the custom_vjp's forward function"
        )
    if kept_bytes := sum(v.size_bytes for graph in graphs for v in graph.values if v.needed):
        return XlapipeError(
            f"{workload}: keeps {kept_bytes:,} B for a backward pass, and calls neither "
            "jax.grad nor jax.value_and_grad, so there is no place for a policy; fix: call "
            "them in place of jax.vjp, jax.linearize or jax.jacrev, or write jax.checkpoint "
            "around the differentiated function"
        )
    return XlapipeError(
        f"{workload}: the step has no gradient, so nothing is kept for a "
        "backward pass; fix: leave --remat and --offload out, or name a step that calls "
        "jax.grad or jax.value_and_grad"
    )


def applicable(
    workload: str, graph: ForwardGraph, places: Sequence[PolicyPlace]
) -> tuple[tuple[PolicyPlace, ...], list[str]]:
    """The places where a policy is possible, and a message on each other.

    A policy must make no side effect happen twice, and `jax.checkpoint` returns arrays alone.

    Raises:
      XlapipeError: none is possible.
    """
    kept, messages = [], []
    for place in places:
        effect = next((e for e in graph.effects if place.computes_again(e)), None)
        others = (site for site in place.sites if site.other_output is not None)
        other = next(others, None) if place.kind == GRADIENT else None
        if effect is not None:
            where = f" at {relative(effect.source)}" if effect.source is not None else ""
            messages.append(
                f"{workload}: {effect.primitive}{where} would happen twice under a "
                f"policy for the {place.where}; fix: move it out of the differentiated "
                "function, or leave --remat and --offload out"
            )
        elif other is not None:
            messages.append(
                f"{workload}: the function that {other.function} differentiates at "
                f"{relative(other.source)} returns {other.other_output}, and under a policy for "
                f"the {place.where} it can return arrays alone; fix: return arrays alone in "
                "its auxiliary output, or write jax.checkpoint around its layers"
            )
        else:
            kept.append(place)
    if messages and not kept:
        raise XlapipeError(messages[0])
    return tuple(kept), messages


def presets(place: PolicyPlace) -> Iterator[StepChange]:
    """jax's own policies, and one by all names of `checkpoint_name`."""
    products = {key for value in place.values if (key := value.key) and key.dimensions is not None}
    kept = {
        "nothing_saveable": set(),
        "dots_saveable": products,
        "dots_with_no_batch_dims_saveable": {
            key for key in products if key.dimensions is not None and not any(key.dimensions[1])
        },
    }
    for name, text in _PRESETS.items():
        if not place.searched and name != "nothing_saveable":
            return
        source = f"policy = jax.checkpoint_policies.{name}\n"
        yield change(text, place, source, kept=kept[name])
    if place.kind == CHECKPOINT:
        source = "policy = jax.checkpoint_policies.everything_saveable\n"
        yield change(KEEP_ALL, place, source)
    names = names_in(place.values)
    if names:
        text = f"keep only {', '.join(names)}"
        keys = {value.key for value in place.values if value.key and value.key.name is not None}
        yield change(text, place, _by_names(names), kept=keys)


def block_changes(places: Sequence[PolicyPlace]) -> Iterator[StepChange]:
    """Policies for blocks that need no search: one of all blocks, one of others, and so on."""
    first, *others = [list(presets(place)) for place in places if place.kind == BLOCK] or [[]]
    for pair in zip_longest(first, chain.from_iterable(others)):
        yield from filter(None, pair)


def names_in(values: Sequence[ForwardValue]) -> tuple[str, ...]:
    """The names that the step gives with `checkpoint_name`."""
    names = (value.key.name for value in values if value.key is not None)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def chosen_values(kept: Kept, place: PolicyPlace) -> StepChange:
    """The policy that keeps some groups, on the device or the host, and recomputes others."""
    texts = [_listed("keep", kept.groups)] if kept.groups else []
    if kept.offloaded:
        texts.append(f"{_listed('offload', kept.offloaded)} to the host")
    text = ", ".join(texts) if texts else "keep no value"
    names = [group.key.name for group in kept.groups if group.key.name is not None]
    if kept.offloaded:
        return change(text, place, _by_keys(kept.groups, kept.offloaded))
    by_names = len(names) == len(kept.groups)
    source = _by_names(names) if by_names else _by_keys(kept.groups, ())
    return change(text, place, source, kept={group.key for group in kept.groups})


def offloaded(groups: Sequence[Group], place: PolicyPlace) -> StepChange:
    """The policy that keeps some groups in the host's memory, and everything else on the device."""
    text = f"offload {', '.join(map(_short, groups))} to the host"
    return change(text, place, _by_keys(None, groups))


def _listed(verb: str, groups: Sequence[Group]) -> str:
    named_first = sorted(groups, key=lambda group: group.key.name is None)
    more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
    return f"{verb} {', '.join(map(_short, named_first[:3]))}{more}"


def change(
    text: str,
    place: PolicyPlace,
    policy: str,
    *,
    kept: Set[PolicyKey] | None = None,
) -> StepChange:
    """A change whose printed code is compiled; `kept` is None if not all of it is on the device."""
    code = f"import jax\n\n{policy}\n\n{_usage(place)}"
    own: dict[str, Any] = {}
    if place.kind == BLOCK:
        code = blocks_code(place.functions, policy, place.some)
        own = {"decorators": decorators_of(place.functions)}
        if place.some is not None:
            own["which"] = place.some.condition
    return StepChange(
        f"{text} ({place.where})",
        code,
        policy=PolicyChange(kind=place.kind, source=code, lines=place.lines, **own),
        recomputed=_recomputed(place, kept) if kept is not None and place.parts else None,
    )


def _recomputed(place: PolicyPlace, kept: Set[PolicyKey]) -> Recomputed:
    numbers = (value.number for value in place.values if value.key and value.key not in kept)
    share = place.some.share if place.some is not None else 1.0
    return Recomputed(numbers=frozenset(numbers), parts=place.parts, share=share)


def _usage(place: PolicyPlace) -> str:
    """Where the user writes the policy, as code and comments."""
    lines = []
    plain = [site for site in place.sites if site.function.startswith("jax.")]
    positions = tuple(dict.fromkeys(site.positions for site in plain))
    if place.kind == GRADIENT and plain:
        lines += _wrapper(positions).splitlines()
    for site in place.sites:
        own = f", {site.positions}" if len(positions) > 1 else ""
        result = ", whose result is called here" if site.made_before else ""
        both = f", in all {site.calls} such calls of this line" if site.calls > 1 else ""
        lines.append(f"# {relative(site.source)}: {_call(site, own)}{result}{both}")
    return "\n".join(lines) + "\n"


def _call(site: PolicySite, positions: str) -> str:
    """The call to write at a site; libraries' functions need their own form of jax.checkpoint."""
    library = site.function.partition(".")[0]
    wrapper = {"jax": "jax.checkpoint", "eqx": "eqx.filter_checkpoint"}.get(library)
    wrapper = wrapper or f"{library}.remat"
    if site.kind == SCAN:
        loop = site.function.rpartition(".")[2]
        return f"{loop} over the body {wrapper}(body, policy=policy, prevent_cse=False)"
    if site.kind == CHECKPOINT:
        return f"{site.function if library == 'jax' else wrapper}(…, policy=policy)"
    if library == "jax":
        return f"{site.function}(rematerialised(…{positions}), …)"
    return f"{site.function}({wrapper}(…, policy=policy), …)"


def _wrapper(positions: Sequence[tuple[int, ...]]) -> str:
    """The function `rematerialised`, for the differentiated arguments of all sites."""
    default = f"={positions[0]!r}" if len(positions) == 1 else ""
    return f'''def rematerialised(function, positions{default}):
    """`function`, which is differentiated in the arguments at `positions`, under `policy`."""

    def with_policy(*arguments, **named):
        def inner(*differentiated):
            values = dict(zip(positions, differentiated, strict=True))
            return function(*(values.get(i, a) for i, a in enumerate(arguments)), **named)

        return jax.checkpoint(inner, policy=policy)(*(arguments[i] for i in positions))

    return with_policy

'''


def _by_names(names: Sequence[str]) -> str:
    if not names:
        return "policy = jax.checkpoint_policies.nothing_saveable\n"
    return (
        f"policy = jax.checkpoint_policies.save_only_these_names({', '.join(map(repr, names))})\n"
    )


def _by_keys(kept: Sequence[Group] | None, moved: Sequence[Group]) -> str:
    """The source of a policy."""
    tables, rules = [], []
    if moved:
        tables.append(_table("OFFLOADED", "move to the host", moved))
        rules.append(
            "    if is_in(OFFLOADED, primitive, inputs, parameters):\n        return HOST\n"
        )
    if kept is None:
        rules.append("    return True\n")
    else:
        tables.append(_table("KEPT", "keep", kept))
        rules.append("    return is_in(KEPT, primitive, inputs, parameters)\n")
    return f"""{_OFFLOADABLE if moved else ""}{"".join(tables)}{_IS_IN}

def policy(primitive, *inputs, **parameters):
{"".join(rules)}"""


_OFFLOADABLE = """from jax.ad_checkpoint import Offloadable

HOST = Offloadable(src="device", dst="pinned_host")
"""
_ABOUT = """# Values to {verb}: a name, or primitive, type of the first input, dimension numbers of
# products, shapes of inputs, where None is any size, as of batches and sequences.
"""
_IS_IN = """

def is_in(values, primitive, inputs, parameters):
    if primitive.name == "name":
        return parameters["name"] in values
    dtype = str(getattr(inputs[0], "dtype", "")) if inputs else ""
    dimensions = parameters["dimension_numbers"] if primitive.name == "dot_general" else None
    shapes = [getattr(value, "shape", ()) for value in inputs]

    def same(shape, own):
        return len(shape) == len(own) and all(a in (b, None) for a, b in zip(shape, own))

    return any(
        value[:3] == (primitive.name, dtype, dimensions) and all(map(same, value[3], shapes))
        for value in values
        if isinstance(value, tuple) and len(value[3]) == len(shapes)
    )
"""


def _table(name: str, verb: str, groups: Sequence[Group]) -> str:
    about = _ABOUT.format(verb=verb)
    if not groups:
        return f"{about}{name} = []\n"
    lines = "".join(f"    {_key_text(group.key)},  # {_about(group)}\n" for group in groups)
    return f"{about}{name} = [\n{lines}]\n"


def _key_text(key: PolicyKey) -> str:
    own = (key.primitive, key.dtype, key.dimensions, key.input_shapes)
    return repr(own if key.name is None else key.name)


def _about(group: Group) -> str:
    largest_first = sorted(group.values, key=lambda value: -value.size_bytes)
    sources = list(dict.fromkeys(relative(v.source) for v in largest_first if v.source is not None))
    more = f" and {len(sources) - 1} more lines" if len(sources) > 1 else ""
    size = rounded(group.size_bytes)
    return f"{sources[0] if sources else 'unknown line'}{more}, {size}".replace("\n", " ")


def _short(group: Group) -> str:
    value, key = max(group.values, key=lambda value: value.size_bytes), group.key
    if key.name is not None:
        return key.name or repr(key.name)
    shape = ",".join(map(str, value.shape))
    line = f" at {relative(value.source)}" if value.source is not None else ""
    return f"{key.primitive} {value.dtype}[{shape}]{line}"
