"""Which of the calls of a step jax compiles a program for: those whose arguments differ in type."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.api_util import shaped_abstractify

from xlapipe.compile.lowering.arguments import CallArguments
from xlapipe.compile.lowering.names import argument_names, named_leaves
from xlapipe.compile.lowering.specs import spec_of
from xlapipe.plans.call_facts import OtherProgram
from xlapipe.plans.program import spec_text
from xlapipe.workload import Workload


@dataclass(frozen=True)
class CallSignature:
    """What jax keeps a program under.

    Attributes:
      tree: the structure of the arguments, with static values.
      leaves: type and place of each leaf, in words, by path.
    """

    tree: Any
    leaves: Mapping[str, str]


def signature_of(workload: Workload, arguments: CallArguments, *, several: bool) -> CallSignature:
    """The signature of a call.

    Args:
      arguments: the workload's, abstract.
      several: whether it runs on several devices.
    """
    names = argument_names(workload)
    static = {
        name: value
        for name, value in (*zip(names, workload.args, strict=True), *workload.kwargs.items())
        if name in arguments.static or (name in names and names.index(name) in arguments.static)
    }
    dynamic = replace(
        workload,
        args=[
            None if name in static else arg for name, arg in zip(names, workload.args, strict=True)
        ],
        kwargs={name: value for name, value in workload.kwargs.items() if name not in static},
        calls=(),
    )
    tree, types = types_of(arguments)
    leaves = zip(named_leaves(dynamic), jax.tree.leaves(arguments.dynamic), types, strict=False)
    texts = {
        path: f"{text}{_place_text(leaf, passed, several=several)}"
        for (path, leaf), passed, text in leaves
    }
    return CallSignature(tree, {**texts, **{name: repr(value) for name, value in static.items()}})


def other_programs(calls: Sequence[CallSignature]) -> Iterator[OtherProgram]:
    """For each call that compiles a program after the first, the leaf that makes it."""
    known: dict[int, CallSignature] = {}
    for number, call in enumerate(calls, start=1):
        if call in known.values():
            continue
        if known:
            like, other = min(known.items(), key=lambda item: len(_differing(item[1], call)))
            yield _other_program(number, call, like, other)
        known[number] = call


def _other_program(
    number: int, call: CallSignature, like: int, other: CallSignature
) -> OtherProgram:
    for path in _differing(other, call):
        was, becomes = (texts.get(path, "absent") for texts in (other.leaves, call.leaves))
        return OtherProgram(number, path, was, becomes, like)
    return OtherProgram(number, "the tree", f"{other.tree}"[:200], f"{call.tree}"[:200], like)


def _differing(one: CallSignature, two: CallSignature) -> list[str]:
    paths = dict.fromkeys([*one.leaves, *two.leaves])
    return [path for path in paths if one.leaves.get(path) != two.leaves.get(path)]


def types_of(arguments: CallArguments) -> tuple[Any, tuple[str, ...]]:
    """The tree of the arguments that are not static, and the type of each leaf."""
    leaves, tree = jax.tree.flatten(arguments.dynamic)
    return tree, tuple(map(_type_text, leaves))


def _type_text(leaf: Any) -> str:
    aval = shaped_abstractify(leaf)
    weak = "weak " if aval.weak_type else ""
    return f"{weak}{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _place_text(leaf: Any, passed: Any, *, several: bool) -> str:
    if several:
        spec = spec_of(getattr(passed, "sharding", None))
        return "" if spec is None else f" at {spec_text(spec)}"
    return " on a device" if is_placed(leaf) else ""


def is_placed(leaf: Any) -> bool:
    """Whether an argument is committed to its device, as far as the user states it."""
    if isinstance(leaf, jax.Array):
        return bool(getattr(leaf, "committed", False))
    return getattr(leaf, "sharding", None) is not None
