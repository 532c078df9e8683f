"""What jax's caches depend on in a call of a traced step, and what comes back for the next call.

Also which of several calls jax compiles a program for: those whose arguments differ in type.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from xlapipe.compile.lowering.jaxprs import depends_only_on, gradient_outputs
from xlapipe.compile.lowering.jit_parameters import jit_device
from xlapipe.compile.lowering.names import fn_text, named_leaves, positional_names
from xlapipe.compile.lowering.wrapped_steps import TracedStep, WrappedStep, follow
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import equality_errors, moves_to_memory, stated_in_shardings
from xlapipe.plans.call_facts import CallFacts, TreeChange
from xlapipe.plans.carried import Argument, carried, leaves_below
from xlapipe.workload import Workload

ANOTHER_OBJECT = "another object"
_ADDRESS, _CLASS = re.compile(r" at 0x[0-9a-f]+"), re.compile(r"<class '(?:.*\.)?(\w+)'>")
# Letters of a value in a message.
_MOST_LETTERS = 80


@dataclass(frozen=True)
class _Typed:
    """A leaf with its type."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    weak: bool


@dataclass(frozen=True)
class TracedCall:
    """A call of a step that was traced with abstract arguments, for one or several devices."""

    workload: Workload
    step: TracedStep
    several: bool

    def facts(self) -> CallFacts:
        """The facts of the call."""
        carry = self._carried()
        details = self.step.lowering.compile_args
        fixed = stated_in_shardings(self.step.traced)
        unplaced = self._unplaced()
        # Other wrappers pass other trees to jax than the user's.
        has_users_trees = type(self.step.step) is WrappedStep
        return CallFacts(
            carried=carry,
            trees=tuple(self._tree_changes(carry)) if has_users_trees else (),
            weak_arguments=tuple(leaf.path for leaf in self._inputs if leaf.weak),
            weak_outputs=tuple(leaf.path for leaf in self._outputs if leaf.weak),
            unplaced=unplaced,
            outputs_placed=self._places_outputs(details, unplaced),
            layouts=dict(self._layouts()),
            output_layouts={
                leaf.path: str(tuple(layout.major_to_minor))
                for leaf, layout in zip(self._outputs, details["out_layouts"], strict=False)
                if hasattr(layout, "major_to_minor") and not _is_default(layout)
            },
            fixed=tuple(
                leaf.path for leaf, is_fixed in zip(self._inputs, fixed, strict=False) if is_fixed
            ),
            gradients=tuple(sorted(self._gradients)),
        )

    @cached_property
    def _inputs(self) -> list[_Typed]:
        return _typed(self.step.argument_names, self.step.traced.jaxpr.in_avals)

    @cached_property
    def _outputs(self) -> list[_Typed]:
        return _typed(self.step.output_names, self.step.traced.jaxpr.out_avals)

    @cached_property
    def _given(self) -> dict[str, Any]:
        """The arguments by name, those that were bound before included, in jax's order."""
        args = self.step.args
        named = zip(positional_names(self.step.step.fn, len(args)), args, strict=True)
        return {**dict(named), **dict(sorted(self.step.kwargs.items()))}

    @cached_property
    def _gradients(self) -> frozenset[str]:
        """Paths of outputs."""
        flags = gradient_outputs(self.step.traced.jaxpr)
        leaves = zip(self._outputs, flags, strict=False)
        return frozenset(leaf.path for leaf, is_gradient in leaves if is_gradient)

    def _carried(self) -> dict[str, str]:
        stated = self.workload.carry
        inputs, outputs = self._inputs, self._outputs
        for path, output in stated.items():
            _refuse_unknown(self.workload, "an argument", path, inputs)
            if output is not None:
                _refuse_unknown(self.workload, "an output", output, outputs)
        donated = [info.donated for info in jax.tree.leaves(self.step.lowered.args_info)]
        of_path = {leaf.path: flag for leaf, flag in zip(inputs, donated, strict=False)}
        arguments = []
        for name in self._given:
            if leaves := leaves_below(name, inputs):
                is_donated = any(of_path.get(leaf.path) for leaf in leaves.values())
                arguments.append(Argument(name, leaves, is_donated))
        free = [leaf for leaf in outputs if leaf.path not in self._gradients]
        return carried(arguments, free, stated, self._is_new_value)

    def _is_new_value(self, argument: str, output: str) -> bool:
        inputs, outputs = ([it.path for it in leaves] for leaves in (self._inputs, self._outputs))
        if argument not in inputs or output not in outputs:
            return False
        source, result = inputs.index(argument), outputs.index(output)
        return self._inputs[source].shape == self._outputs[result].shape and depends_only_on(
            self.step.traced.jaxpr, source, result
        )

    def _unplaced(self) -> tuple[str, ...]:
        passed = jax.tree.leaves(self.step.arguments.dynamic)
        if len(passed) != len(self._inputs):
            return ()
        if self.several:
            places = [getattr(leaf, "sharding", None) for leaf in passed]
            pairs = zip(self._inputs, places, strict=True)
            return tuple(leaf.path for leaf, place in pairs if place is None)
        placed = {path for path, leaf in named_leaves(self.workload) if is_placed(leaf)}
        over_mesh = self.workload.mesh is not None or jit_device(self.workload.fn) is not None
        return tuple(
            leaf.path for leaf in self._inputs if leaf.path not in placed and not over_mesh
        )

    def _places_outputs(self, details: Mapping[str, Any], unplaced: Sequence[str]) -> bool:
        stated = (*details["out_shardings"], *(details.get("intermediate_shardings") or ()))
        kept = {
            leaf.path
            for number, leaf in enumerate(self._inputs)
            if number in details["kept_var_idx"]
        }
        return (
            self.several
            or not kept <= {*unplaced}
            or any(isinstance(item, jax.sharding.Sharding) for item in stated)
            or moves_to_memory(self.step.traced.jaxpr)
        )

    def _layouts(self) -> Iterator[tuple[str, str]]:
        for path, leaf in named_leaves(self.workload):
            layout = getattr(getattr(leaf, "format", None), "layout", None)
            if layout is not None and not _is_default(layout):
                yield path, str(tuple(layout.major_to_minor))

    def _tree_changes(self, carry: Mapping[str, str]) -> Iterator[TreeChange]:
        returned = _with_types(self.step)
        for argument, output in carry.items():
            names = (name for name in self._given if argument.startswith(name))
            name = max(names, key=len, default="")
            with suppress(Exception):  # `==` of the user's static fields may raise anything
                one = _node_at(self._given[name], name, argument)
                two = _node_at(returned, "out", output)
                yield from _changes(argument, one, output, two)


def _typed(names: Sequence[str], avals: Sequence[Any]) -> list[_Typed]:
    return [
        _Typed(name, tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False)))
        for name, aval in zip(names, avals, strict=False)
    ]


def _with_types(step: TracedStep) -> Any:
    """The tree that a step returns, of abstract arrays."""
    return step.traced.out_tree.unflatten(
        [
            jax.ShapeDtypeStruct(
                aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False)
            )
            for aval in step.traced.jaxpr.out_avals
        ]
    )


def _is_default(layout: Any) -> bool:
    return tuple(layout.major_to_minor) == tuple(range(len(layout.major_to_minor)))


def _node_at(tree: Any, root: str, prefix: str) -> Any:
    """The part of a tree at a path; raises LookupError without it."""
    if prefix == root:
        return tree
    for path, _ in tree_flatten_with_path(tree, is_leaf=lambda node: node is None)[0]:
        for length in range(len(path) + 1):
            if f"{root}{keystr(path[:length])}" == prefix:
                return reduce(follow, path[:length], tree)
    raise LookupError(prefix)


def _changes(argument: str, one: Any, output: str, two: Any) -> Iterator[TreeChange]:
    """Leaves that only one of two trees has, or else the first node that differs."""
    trees: tuple[Any, Any] = jax.tree.structure(one), jax.tree.structure(two)
    if trees[0] == trees[1]:
        return
    was, becomes = _leaves(one), _leaves(two)
    differing = [rest for rest in {**was, **becomes} if was.get(rest) != becomes.get(rest)]
    if not was.keys() & becomes.keys():
        differing = []
    for rest in differing:
        texts = (leaves.get(rest, "nothing") for leaves in (was, becomes))
        yield TreeChange(f"{argument}{rest}", f"{output}{rest}", *texts)
    if not differing:
        path, *nodes, _ = next(iter(equality_errors(one, two)), ((), "a tree", "a tree", ""))
        was_text, becomes_text = (
            _CLASS.sub(r"\1", _ADDRESS.sub("", node))[:_MOST_LETTERS] for node in nodes
        )
        becomes_text = ANOTHER_OBJECT if was_text == becomes_text else becomes_text
        name = keystr(path)
        yield TreeChange(f"{argument}{name}", f"{output}{name}", was_text, becomes_text)


def _leaves(tree: Any) -> dict[str, str]:
    leaves, _ = tree_flatten_with_path(tree, is_leaf=lambda node: node is None)
    return {keystr(path): "None" if leaf is None else "an array" for path, leaf in leaves}


def _refuse_unknown(workload: Workload, what: str, path: str, leaves: Sequence[_Typed]) -> None:
    if not leaves_below(path, leaves):
        named = ", ".join(leaf.path for leaf in leaves[:8])
        raise WorkloadError(
            f"{fn_text(workload)}: carry names {path!r}, expected {what}, or a part of one, with "
            f"an array; found {named}{' …' if len(leaves) > 8 else ''}; fix: name one of these"
        )


def is_placed(leaf: Any) -> bool:
    """Whether an argument is committed to its device, as far as the user states it."""
    if isinstance(leaf, jax.Array):
        return bool(getattr(leaf, "committed", False))
    return getattr(leaf, "sharding", None) is not None
