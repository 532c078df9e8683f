"""Launches and calls of wrapper code: who computes, what is read and written."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from xlapipe.inductor.inductor_plan import InductorKernel, KernelKind
from xlapipe.inductor.layouts import Layout, Tensor
from xlapipe.inductor.operators import base_name, collective_kind, is_extern, writes_operand
from xlapipe.inductor.wrapper.triton_source import TritonKernel


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that is passed to a kernel.

    Attributes:
      parameter: the Triton kernel's; None for other kernels.
    """

    name: str
    tensor: Tensor
    parameter: str | None = None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its elements; None if unknown."""
        return self.tensor.layout.element_bytes if self.tensor.layout is not None else None

    @property
    def type_text(self) -> str:
        """Element type and sizes."""
        return self.tensor.layout.type_text if self.tensor.layout is not None else "?"


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with its operands.

    Attributes:
      scalars: texts of the arguments that are not tensors, by position.
      outputs: tensors that it returns or writes through `out=`.
      keywords: texts of the keyword arguments; None if unknown.
    """

    kernel: InductorKernel
    definition: TritonKernel | None
    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[str, ...]
    keywords: Mapping[str, str] | None

    @property
    def written(self) -> tuple[Operand, ...]:
        """What it writes, its outputs included."""
        definition = self.definition
        if definition is not None:
            return tuple(o for o in self.operands if o.parameter in definition.written)
        if self.outputs:
            return self.outputs
        return self.operands[:1] if writes_operand(self.kernel.name) else ()

    @property
    def read(self) -> tuple[Operand, ...]:
        """What it may read."""
        definition = self.definition
        if definition is not None:
            return tuple(o for o in self.operands if o.parameter in definition.read)
        return self.operands


def kernel_kind(
    operator: str, definition: TritonKernel | None, how: str | None, *, has_out: bool
) -> KernelKind:
    if definition is not None:
        if definition.heuristic == "template" or operator.startswith("triton_tem_"):
            return KernelKind.TEMPLATE
        user = definition.heuristic == "user_autotune"
        return KernelKind.USER_TRITON if user else KernelKind.TRITON
    if how is not None:
        return KernelKind.CPP if "cpp" in how else KernelKind.TEMPLATE
    if "." not in operator:
        return KernelKind.TRITON if "triton" in operator else KernelKind.OTHER
    return operator_kind(operator, has_out=has_out)


def operator_kind(operator: str, *, has_out: bool = False) -> KernelKind:
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


def collective_layout(operator: str, operand: Layout | None, node: ast.Call) -> Layout | None:
    """The layout of a collective's result, which follows from its operand's."""
    kind = collective_kind(operator)
    if kind is None or operand is None or not operand.shape:
        return None
    if kind not in ("all-gather", "reduce-scatter"):
        return operand
    group, first = group_size(scalars_of(node)), operand.shape[0]
    gathers = kind == "all-gather"
    if group is None or not isinstance(first, int) or (not gathers and first % group):
        return None
    size = first * group if gathers else first // group
    return replace(operand, shape=(size, *operand.shape[1:]))


def scalars_of(node: ast.Call) -> Iterator[str]:
    """Texts of the arguments of a call that are not tensors: `2=False`."""
    for place, argument in enumerate(node.args):
        if isinstance(argument, (ast.Constant, ast.List, ast.Attribute, ast.UnaryOp)):
            yield f"{place}={ast.unparse(argument)[:200]}"


def group_size(scalars: Iterable[str]) -> int | None:
    """The number of devices of a collective, which is its first number above 0."""
    for scalar in scalars:
        number = scalar.partition("=")[2]
        if number.isdecimal() and int(number) > 0:
            return int(number)
    return None
