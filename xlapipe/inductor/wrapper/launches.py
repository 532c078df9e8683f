"""Launches and calls of wrapper code: who computes, what is read and written."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xlapipe.inductor.allocations import Replay, Tensor
from xlapipe.inductor.inductor_plan import Kernel, KernelKind
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.operators import (
    base_name,
    collective_kind,
    is_extern,
    writes_operand,
)
from xlapipe.inductor.wrapper.output_code import WrapperCode
from xlapipe.inductor.wrapper.triton_source import TritonKernel

_USER_HEURISTICS = ("user_autotune",)
_SCALE = {"all-gather": 1, "reduce-scatter": -1}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that is passed to a kernel.

    Attributes:
      name: in the text.
      parameter: the Triton kernel's; None for other kernels.
    """

    name: str
    tensor: Tensor
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with its operands.

    Attributes:
      scalars: texts of the arguments that are not tensors, by position.
      outputs: tensors that it returns or writes through `out=`.
      source_nodes: names that the comment above it lists.
    """

    position: int
    operator: str
    definition: TritonKernel | None
    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[str, ...]
    keywords: Mapping[str, str]
    line: int
    source_nodes: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[Operand, ...]:
        """What it writes, its outputs included."""
        definition = self.definition
        if definition is not None:
            return tuple(o for o in self.operands if o.parameter in definition.written)
        if self.outputs:
            return self.outputs
        return self.operands[:1] if writes_operand(self.operator) else ()

    @property
    def read(self) -> tuple[Operand, ...]:
        """What it may read."""
        definition = self.definition
        if definition is not None:
            return tuple(o for o in self.operands if o.parameter in definition.read)
        return self.operands


class Launches:
    """Records launches in the replay.

    Attributes:
      made: in order.
      constants: tensors of the module that were used.
      muted: whether launches are not recorded, as on the second pass through a loop.
    """

    def __init__(self, code: WrapperCode, replay: Replay) -> None:
        self.muted = False
        self._code = code
        self._replay = replay
        self.made: list[Launch] = []
        self.constants: dict[str, Tensor] = {}

    def is_kernel(self, operator: str) -> bool:
        """Whether the wrapper defines what is called: a Triton, C++ or CUTLASS kernel."""
        name = operator.removesuffix(".run")
        if name in self._code.kernels or name in self._code.other_kernels:
            return True
        return operator.endswith(".run") and name in self._code.names

    def add(
        self,
        operator: str,
        node: ast.Call,
        operands: Sequence[tuple[int | None, str, Tensor]],
        outputs: Sequence[tuple[str, Tensor]],
        keywords: Mapping[str, str],
    ) -> None:
        """Records a call at the next position.

        Args:
          operands: place among the positional arguments, name, tensor.
        """
        if self.muted:
            return
        name = operator.removesuffix(".run")
        definition = self._code.kernels.get(name)
        parameters = definition.parameters if definition is not None else ()
        launch = Launch(
            position=self._replay.position,
            operator=name,
            definition=definition,
            operands=tuple(
                Operand(text, tensor, _parameter(parameters, place))
                for place, text, tensor in operands
            ),
            outputs=tuple(Operand(text, tensor) for text, tensor in outputs),
            scalars=tuple(_scalars(node)),
            keywords=keywords,
            line=self._code.number(node),
            source_nodes=self._code.origin(node).nodes,
        )
        self.made.append(launch)
        for operand in launch.written:
            self._replay.storages[operand.tensor.storage].mutated = True
        self._replay.launch(self._kernel(launch, node))

    def _kernel(self, launch: Launch, node: ast.Call) -> Kernel:
        origin = self._code.origin(node)
        operators = origin.operators
        if not operators and launch.definition is not None:
            operators = launch.definition.origins
        return Kernel(
            position=launch.position,
            kind=self._kind(launch),
            name=launch.operator,
            line=launch.line,
            reads=tuple(dict.fromkeys(operand.name for operand in launch.read)),
            writes=tuple(dict.fromkeys(operand.name for operand in launch.written)),
            origins=operators,
        )

    def _kind(self, launch: Launch) -> KernelKind:
        operator, definition = launch.operator, launch.definition
        if definition is not None:
            if definition.heuristic == "template" or operator.startswith("triton_tem_"):
                return KernelKind.TEMPLATE
            user = definition.heuristic in _USER_HEURISTICS
            return KernelKind.USER_TRITON if user else KernelKind.TRITON
        how = self._code.other_kernels.get(operator)
        if how is not None:
            return KernelKind.CPP if "cpp" in how else KernelKind.TEMPLATE
        if "." not in operator:
            return KernelKind.TRITON if "triton" in operator else KernelKind.OTHER
        return operator_kind(operator, has_out="out" in launch.keywords)

    def result_layout(
        self, operator: str, operands: Sequence[Tensor], node: ast.Call
    ) -> Layout | None:
        """The layout of a collective's result, which follows from its operand's."""
        kind = collective_kind(operator)
        layout = operands[0].layout if operands else None
        if kind is None or layout is None or not layout.shape:
            return None
        group = group_size(node)
        scale = _SCALE.get(kind, 0)
        if not scale:
            return layout
        first = layout.shape[0]
        if group is None or not isinstance(first, int) or (scale < 0 and first % group):
            return None
        size = first * group if scale > 0 else first // group
        return replace(layout, shape=(size, *layout.shape[1:]))


def operator_kind(operator: str, *, has_out: bool = False) -> KernelKind:
    """The kind of a library's operator."""
    if collective_kind(operator) is not None:
        return KernelKind.COLLECTIVE
    name = base_name(operator)
    if name == "wait_tensor":
        return KernelKind.WAIT
    if name in ("resize_storage_bytes_", "resize_"):
        return KernelKind.RESIZE
    if is_extern(operator) or has_out:
        return KernelKind.EXTERN
    return KernelKind.FALLBACK


def group_size(node: ast.Call) -> int | None:
    """The number of devices of a collective, which is its first number above 0."""
    for argument in node.args[1:]:
        match argument:
            case ast.Constant(value=int(number)) if not isinstance(number, bool) and number > 0:
                return number
    return None


def _parameter(parameters: Sequence[str], place: int | None) -> str | None:
    return parameters[place] if place is not None and place < len(parameters) else None


def _scalars(node: ast.Call) -> Iterator[str]:
    for place, argument in enumerate(node.args):
        if isinstance(argument, (ast.Constant, ast.List, ast.Attribute, ast.UnaryOp)):
            yield f"{place}={ast.unparse(argument)[:200]}"
