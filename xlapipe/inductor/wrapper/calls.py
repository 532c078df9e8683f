"""Calls in wrapper code: allocations, launches of kernels, operators, methods of tensors.

A call returns a value without references, which `replay` adds.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.allocations import ReplayedArgument
from xlapipe.inductor.inductor_plan import InductorKernel, ResizedStorage
from xlapipe.inductor.layouts import ITEM_BYTES, Layout, Tensor
from xlapipe.inductor.operators import (
    ALLOCATORS,
    allocates_no_tensor,
    base_name,
    hides_bytes,
    returns_operand,
)
from xlapipe.inductor.wrapper.evaluation import OPAQUE, Evaluator, Value, items_of, tensors_in
from xlapipe.inductor.wrapper.launches import (
    Launch,
    Operand,
    collective_layout,
    kernel_kind,
    scalars_of,
)
from xlapipe.inductor.wrapper.sizes_and_dtypes import name_of, stated_dtype
from xlapipe.inductor.wrapper.triton_source import TritonKernel
from xlapipe.plans.hlo import SourceLine

_INSIDE = "what the operator allocates inside is not in the dump"
_NO_SIZE = "the size of its result is not in the dump"
# Methods of tensors: those that return a view, and those whose result holds no memory.
_VIEW_METHODS = frozenset(
    {"view", "reshape", "t", "permute", "transpose", "detach", "squeeze", "unsqueeze", "expand"}
    | {"as_strided", "view_as", "flatten", "alias"}
)
_QUESTIONS = frozenset(
    {"item", "dim", "numel", "data_ptr", "is_contiguous", "untyped_storage", "storage_offset"}
    | {"record_stream", "isnan", "isinf", "any", "all", "tolist", "stride", "size", "get_device"}
)


class Calls(Evaluator):
    """Follows calls that leave the module."""

    def take_arguments(self, names: Sequence[str], node: ast.AST) -> None:
        """Binds the names that `call` unpacks from its arguments, and decides who frees them."""
        asserted = any(name in self.gathered.asserted for name in names)
        groups: dict[int, int] = {}
        for name in names:
            example, layout = self.code.examples.get(name), self.layout_of(name, node)
            if isinstance(example, int) or (layout is None and asserted):
                self.names[name] = example if isinstance(example, int) else OPAQUE
                self.replay.arguments.append(ReplayedArgument(name, None, None, False))
                continue
            tensor, given = self._argument(name, layout, node, groups)
            self.hold(tensor)
            self.bind(name, tensor, node)
            self.replay.arguments.append(ReplayedArgument(name, layout, tensor, given))

    def _argument(
        self, name: str, layout: Layout | None, node: ast.AST, groups: dict[int, int]
    ) -> tuple[Tensor, bool]:
        """An argument, and whether the caller gives it away."""
        link = self.known.given.get(name)
        size = layout.element_bytes if layout is not None else None
        given = link is not None and link.group is not None
        if link is not None and link.size_bytes is not None:
            size = link.size_bytes
        if link is not None and link.group in groups:
            return Tensor(groups[link.group], layout), True
        line = self.code.number(node)
        tensor = self.replay.allocate(
            name, size, line, argument=True, held=not given, layout=layout
        )
        if link is not None and link.group is not None:
            groups[link.group] = tensor.storage
        return tensor, given

    def allocate(self, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
        """`empty_strided_cuda(sizes, strides, dtype)` and the like."""
        layout = self.layout_in(
            node, 0, stated_dtype(node, 2), ALLOCATORS[operator] or _device(node)
        )
        if layout.dtype is not None and layout.dtype not in ITEM_BYTES:
            self.fail(node, "a dtype of torch", shown(layout.dtype))
        name = names[0] if names else "?"
        if layout.storage_bytes is None:
            self.unknown(name, node, f"the size {layout} has symbols without a value")
        return self.new_tensor(name, layout, node)

    def part_of_pool(self, node: ast.Call) -> Value:
        """`alloc_from_pool(pool, offset in bytes, dtype, sizes, strides)`, of memory planning."""
        pool, offset, *_ = (*map(self.evaluate, node.args[:2]), None, None)
        if not isinstance(pool, Tensor):
            self.refuse(node, "a part of a pool")
        layout = self.layout_in(node, 3, stated_dtype(node, 2), "cuda")
        place = offset if isinstance(offset, int) else None
        return self.checked_view(Tensor(pool.storage, layout, place), node)

    def is_kernel(self, operator: str) -> bool:
        """Whether the wrapper defines what is called: a Triton, C++ or CUTLASS kernel."""
        name = operator.removesuffix(".run")
        if name in self.code.kernels or name in self.code.other_kernels:
            return True
        return operator.endswith(".run") and name in self.code.names

    def launch(self, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
        """Records a launch of a kernel or a call of an operator; returns its results."""
        operands, keywords = self._operands(node, operator)
        outputs: list[Operand] = []
        results: Value = None
        if "out" in keywords:
            out = keywords["out"]
            name = name_of(out) or "out"
            outputs = [Operand(name, tensor) for tensor in tensors_in(self.evaluate(out))]
            results = OPAQUE if outputs else None
        if not outputs and not self.is_kernel(operator):
            results = self._results(node, operator, names, operands)
            outputs = self._named(results, names)
        self._record(operator, node, operands, outputs, keywords)
        if base_name(operator) == "resize_storage_bytes_" and operands:
            self._resize(node, operands[0].name)
        return results

    def _operands(
        self, node: ast.Call, operator: str = ""
    ) -> tuple[list[Operand], dict[str, ast.expr]]:
        """Tensors that are passed, and the keyword arguments."""
        definition = self.code.kernels.get(operator.removesuffix(".run"))
        parameters = definition.parameters if definition is not None else ()
        keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
        passed = [*node.args, *(value for name, value in keywords.items() if name != "out")]
        operands = [
            Operand(name_of(argument) or "?", tensor, parameter)
            for place, argument in enumerate(passed)
            for parameter in [
                parameters[place] if place < min(len(parameters), len(node.args)) else None
            ]
            for tensor in tensors_in(self.evaluate(argument))
        ]
        return operands, keywords

    def _record(
        self,
        operator: str,
        node: ast.Call,
        operands: Sequence[Operand],
        outputs: Sequence[Operand],
        keywords: Mapping[str, ast.expr],
    ) -> None:
        """Adds a launch at the next position."""
        if self.muted:
            return
        name, how = operator.removesuffix(".run"), self.code.other_kernels.get(operator)
        definition = self.code.kernels.get(name)
        operators, source = self._origin(node, definition)
        kernel = InductorKernel(
            position=self.replay.position,
            kind=kernel_kind(name, definition, how, has_out="out" in keywords),
            name=name,
            line=self.code.number(node),
            source=source,
            origins=operators,
        )
        texts = {word: ast.unparse(value)[:200] for word, value in keywords.items()}
        scalars = tuple(scalars_of(node))
        launch = Launch(kernel, definition, tuple(operands), tuple(outputs), scalars, texts)
        reads, writes = (
            tuple(dict.fromkeys(operand.name for operand in part))
            for part in (launch.read, launch.written)
        )
        launch = replace(launch, kernel=replace(kernel, reads=reads, writes=writes))
        self.replay.launches.append(launch)
        self.replay.kernels.append(launch.kernel)
        for operand in launch.written:
            self.replay.storages[operand.tensor.storage].mutated = True

    def _origin(
        self, node: ast.Call, definition: TritonKernel | None
    ) -> tuple[tuple[str, ...], SourceLine | None]:
        """Operators from which a launch was made, and the line of the program."""
        origin, mapping = self.code.origin(node), self.code.node_mapping
        fused = definition.origins if definition is not None else ()
        operators = origin.operators or fused
        if self.known.fx is None:
            return operators, None
        names = [*reversed(definition.fragment)] if definition is not None else []
        names += [inner for name in reversed(origin.nodes) for inner in mapping.get(name, ())]
        return operators, self.known.fx.source_of(
            (*names, *reversed(origin.nodes)), reversed(operators)
        )

    def _results(
        self, node: ast.Call, operator: str, names: Sequence[str], operands: Sequence[Operand]
    ) -> Value:
        """What a call returns, without references."""
        if returns_operand(operator) and operands:
            return operands[0].tensor
        name = names[0] if names else base_name(operator)
        places = dict(enumerate(names)) if len(names) > 1 else self.gathered.elements.get(name)
        made: Value = OPAQUE
        if places:
            made = tuple(
                self.new_tensor(places[place], self.layout_of(places[place], node), node)
                if place in places
                else OPAQUE
                for place in range(min(max(places) + 1, max(len(names), 64)))
            )
        elif names:
            layout = self.layout_of(name, node)
            if layout is None and operands:
                layout = collective_layout(operator, operands[0].tensor.layout, node)
            made = self.new_tensor(name, layout, node)
        self._note_unknown(operator, node, made)
        return made

    def _note_unknown(self, operator: str, node: ast.Call, made: Value) -> None:
        """Records that a call allocates more than its results, or results of unknown sizes."""
        storages = [self.replay.storages[tensor.storage] for tensor in tensors_in(made)]
        known = [storage.size_bytes for storage in storages if storage.size_bytes is not None]
        results = sum(known) if len(known) == len(storages) else None
        if hides_bytes(operator):
            self.unknown(operator, node, _INSIDE, results)
        elif results is None:
            self.unknown(operator, node, _NO_SIZE)

    def _named(self, results: Value, names: Sequence[str]) -> list[Operand]:
        """Tensors among results, with the names that they are going to have."""
        if isinstance(results, Tensor):
            return [Operand(names[0] if names else "?", results)]
        places = dict(enumerate(names))
        if len(names) == 1:
            places = dict(self.gathered.elements.get(names[0], {}))
        return [
            Operand(places.get(place, "?"), item)
            for place, item in enumerate(items_of(results))
            if isinstance(item, Tensor)
        ]

    def _resize(self, node: ast.Call, name: str) -> None:
        size = self.evaluate(node.args[1]) if len(node.args) > 1 else None
        number, line = size if isinstance(size, int) else None, self.code.number(node)
        self.replay.resized.append(ResizedStorage(name, "", number, line))
        tensor = self.evaluate(node.args[0])
        if isinstance(tensor, Tensor) and number is not None:
            self.replay.resize(tensor.storage, number, line)

    def method(self, node: ast.Call) -> Value:
        """The result of a tensor's method; None for another call."""
        if not isinstance(node.func, ast.Attribute):
            return None
        method, name = node.func.attr, ast.unparse(node.func.value)[:80]
        tensor = self._tensor(node.func.value)
        if tensor is None or method in _QUESTIONS:
            return None if tensor is None else self.evaluate(node)
        if method in _VIEW_METHODS:
            return tensor
        if method == "clone":
            copied = self.new_tensor(ast.unparse(node)[:80], tensor.layout, node)
            if self.replay.storages[copied.storage].size_bytes is None:
                self.unknown(ast.unparse(node)[:80], node, _NO_SIZE)
            return copied
        if method.endswith("_"):
            operands, _ = self._operands(node)
            self_operand = Operand(name, tensor)
            self._record(f"aten.{method}", node, [self_operand, *operands], [self_operand], {})
        else:
            self.unknown(f"Tensor.{method}", node, "what the method allocates is not in the dump")
        return OPAQUE

    def _tensor(self, node: ast.expr) -> Tensor | None:
        """The tensor of a name, an item of a list, or a view by a method."""
        value: Value = None
        match node:
            case ast.Name(id=name):
                value = self.names.get(name)
            case ast.Subscript():
                value = self.evaluate(node)
            case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in _VIEW_METHODS:
                value = self._tensor(base)
        return value if isinstance(value, Tensor) else None

    def other(self, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
        """A function that is not an operator; one that is not known may allocate."""
        operands, _ = self._operands(node)
        allocates = bool(operands) or (bool(names) and operator.startswith("torch."))
        if allocates and not allocates_no_tensor(operator):
            name = operator or ast.unparse(node.func)[:80]
            self.unknown(name, node, "what this function allocates is not known")
        return OPAQUE


def _device(node: ast.Call) -> str:
    for word in node.keywords:
        if word.arg == "device":
            return "cpu" if "cpu" in ast.unparse(word.value) else "cuda"
    return "cpu"
