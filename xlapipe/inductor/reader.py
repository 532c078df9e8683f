"""From files to InductorPlans: each graph's documents, forward graphs linked to backward graphs."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from xlapipe.errors import DumpError
from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.assemble import plan_of_ir, plan_of_wrapper
from xlapipe.inductor.fx_graphs import FxGraph, read_fx_graph
from xlapipe.inductor.graph_files import GraphFiles, graphs_of
from xlapipe.inductor.inductor_plan import GraphKind, InductorPlan
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.text import read_ir
from xlapipe.inductor.layouts import Layout, Tensor
from xlapipe.inductor.verify import verify
from xlapipe.inductor.wrapper.evaluation import GivenArgument, Known
from xlapipe.inductor.wrapper.output_code import (
    WrapperCode,
    is_cpp_wrapper,
    literal_sizes,
    read_wrapper,
)
from xlapipe.inductor.wrapper.replay import replay_wrapper
from xlapipe.inductor.wrapper.sizes_and_dtypes import Gathered
from xlapipe.plans.short_repr import short_repr

_ALONE = "no forward graph was found: every argument counts as kept by the caller"
_TANGENT = re.compile(r"tangents_\d+")


@dataclass(frozen=True)
class InductorDump:
    """The graphs at one path: forward and inference graphs by name, then backward graphs."""

    __repr__ = short_repr

    path: Path
    plans: tuple[InductorPlan, ...]


def read_inductor(path: Path) -> InductorDump:
    """Reads an IR dump, wrapper code, a folder of graphs or a log; each gzipped or not."""
    graphs = [_Graph(files) for files in graphs_of(path)]
    if not graphs:
        raise DumpError(
            f"{path}: expected graphs of torch Inductor, that is folders with output_code.py or "
            "ir_post_fusion.txt, found none; fix: give the folder that TORCH_COMPILE_DEBUG=1 wrote"
        )
    try:
        readable, left_out = _readable(graphs)
        for graph in readable:
            graph.link(readable)
        first, *others = map(_plan, readable)
        plans = (replace(first, notes=(*left_out, *first.notes)), *others)
    except RecursionError:
        raise DumpError(
            f"{path}: expected expressions of a moderate depth, found deeper ones; fix: the file "
            "is damaged, dump it again"
        ) from None
    for plan in plans:
        verify(plan)
    return InductorDump(
        path, tuple(sorted(plans, key=lambda plan: plan.kind == GraphKind.BACKWARD))
    )


def _readable(graphs: Sequence["_Graph"]) -> tuple[list["_Graph"], list[str]]:
    """The graphs whose documents can be read, and the errors of the others."""
    readable: list[_Graph] = []
    errors: list[DumpError] = []
    for graph in graphs:
        try:
            graph.read()
            readable.append(graph)
        except DumpError as error:
            errors.append(error)
    if not readable:
        raise errors[0]
    return readable, [f"a graph was left out: {error}" for error in errors]


class _Graph:
    """One graph's documents, read when they are needed.

    Attributes:
      saved: how many of its last outputs are for its backward graph; None if not known.
      given: what its forward graph states about its arguments; None without one.
    """

    def __init__(self, files: GraphFiles) -> None:
        self.files = files
        self.notes: list[str] = []
        self.saved: int | None = None
        self.given: Mapping[str, GivenArgument] | None = None

    @cached_property
    def code(self) -> WrapperCode | None:
        """None without wrapper code, and if it is in C++ with IR beside it."""
        wrapper = self.files.wrapper
        if wrapper is not None and self.files.ir is not None and is_cpp_wrapper(wrapper):
            return None
        return read_wrapper(wrapper) if wrapper is not None else None

    @cached_property
    def ir(self) -> IrGraph | None:
        """None without IR, and if damaged IR is beside wrapper code, which has every allocation."""
        if self.files.ir is None:
            return None
        try:
            return IrGraph(read_ir(self.files.ir))
        except DumpError as error:
            if self.files.wrapper is None:
                raise
            self.notes.append(f"IR beside the wrapper code was not read: {error}")
            return None

    def read(self) -> None:
        """Reads the documents."""
        if self.code is not None and self.files.kind != GraphKind.BACKWARD:
            _ = self.replayed
        _ = self.ir, self.fx

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not understood in its IR."""
        return tuple(self.files.ir.left_out) if self.files.ir is not None else ()

    @cached_property
    def fx(self) -> FxGraph | None:
        return read_fx_graph(self.files.fx) if self.files.fx is not None else None

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """What IR and the FX graph state about buffers and arguments."""
        placeholders = self.fx.placeholders if self.fx is not None else {}
        return {**placeholders, **(self.ir.layouts if self.ir is not None else {})}

    def replay(self, known: Known) -> Replay:
        assert self.code is not None
        return replay_wrapper(self.code, replace(known, layouts=self.layouts, fx=self.fx))

    @cached_property
    def replayed(self) -> Replay:
        """The replay of a graph whose arguments the caller keeps."""
        return self.replay(Known())

    def link(self, others: Sequence["_Graph"]) -> None:
        """Finds the forward graph of a backward graph: the first one whose outputs match."""
        if self.files.kind != GraphKind.BACKWARD or self.code is None:
            return
        same = (self.files.group, self.files.number)
        for forward in others:
            if forward.files.kind != GraphKind.FORWARD or forward.code is None:
                continue
            if (forward.files.group, forward.files.number) == same:
                linked = link(forward.replayed, self.code)
                if linked is not None:
                    forward.saved, self.given = linked.saved, linked.given
                    return


def _plan(graph: _Graph) -> InductorPlan:
    if graph.code is None:
        assert graph.ir is not None
        plan = plan_of_ir(graph.files, graph.ir, graph.layouts)
        return replace(plan, notes=(*graph.left_out, *plan.notes))
    notes = [*graph.left_out, *graph.notes]
    if graph.files.kind == GraphKind.BACKWARD and graph.given is None:
        notes.append(_ALONE)
    replayed = graph.replayed if graph.given is None else graph.replay(Known(given=graph.given))
    return plan_of_wrapper(graph.files, replayed, ir=graph.ir, saved=graph.saved, notes=notes)


@dataclass(frozen=True)
class Link:
    """How many of a forward graph's outputs are saved, and who owns the backward's arguments."""

    saved: int
    given: Mapping[str, GivenArgument]


def link(forward: Replay, backward: WrapperCode) -> Link | None:
    """Matches outputs and arguments; None where their numbers or sizes do not match.

    AOTAutograd's forward graph returns what the user asked for, then what it saves; its backward
    graph takes what was saved, then the tangents. What was saved and is neither an argument of the
    forward graph nor one of the user's outputs has no other owner: the backward graph frees it at
    its `del`.
    """
    names = argument_names(backward)
    saved_names = [name for name in names if _TANGENT.fullmatch(name) is None]
    count = len(saved_names)
    if not count or count > len(forward.returned):
        return None
    first = len(forward.returned) - count
    pairs = _paired(saved_names, forward.returned[first:], argument_layouts(backward))
    if pairs is None:
        return None
    users = {tensor.storage for _, tensor in forward.returned[:first] if tensor is not None}
    return Link(count, {name: _given(forward, tensor, users) for name, tensor in pairs.items()})


def _given(forward: Replay, tensor: Tensor, users: set[int]) -> GivenArgument:
    storage = forward.storages[tensor.storage]
    if storage.argument or storage.constant or tensor.storage in users:
        return GivenArgument(None, None)
    return GivenArgument(tensor.storage, storage.size_bytes)


def _paired(
    names: Sequence[str],
    outputs: Sequence[tuple[str, Tensor | None]],
    layouts: Mapping[str, Layout],
) -> dict[str, Tensor] | None:
    """Arguments with the tensors that were saved for them.

    Saved numbers come last among the outputs and first among the arguments.
    """
    numbers = [tensor for _, tensor in outputs if tensor is None]
    tensors = [tensor for _, tensor in outputs if tensor is not None]
    pairs = dict(zip(names[len(numbers) :], tensors, strict=True))
    for name, tensor in pairs.items():
        layout = layouts.get(name)
        if layout is None or tensor.layout is None:
            continue
        known = all(isinstance(size, int) for size in (*layout.shape, *tensor.layout.shape))
        if known and layout.shape != tensor.layout.shape:
            return None
    return pairs


def argument_names(code: WrapperCode) -> tuple[str, ...]:
    """Names that `call` unpacks from its arguments."""
    for node in ast.walk(code.functions["call"]):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=items) | ast.List(elts=items)], value=ast.Name(id="args")
            ):
                return tuple(item.id for item in items if isinstance(item, ast.Name))
    return ()


def argument_layouts(code: WrapperCode) -> Mapping[str, Layout]:
    """Layouts of the arguments as far as they are numbers."""
    layouts = {
        name: example for name, example in code.examples.items() if isinstance(example, Layout)
    }
    for name, asserted in Gathered(code, {}).asserted.items():
        shape, strides = map(literal_sizes, asserted.args[1:3])
        if name not in layouts and shape is not None and strides is not None:
            layouts[name] = Layout(None, shape, strides)
    return layouts
