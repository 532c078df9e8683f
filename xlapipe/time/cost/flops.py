"""Floating-point operations of matrix products and convolutions, by type of the operands.

A multiply-add counts as two. The types are those of `Device.peak_of`; `vector` stands for
products that XLA computes with multiplications and a reduction, outside the tensor cores.
Arithmetic on elements is not counted.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from xlapipe.plans import Computation, GemmBackend, HloModule, Instruction, Plan, Shape
from xlapipe.plans.dataflow import operand_index
from xlapipe.plans.opcodes import CONTRACTS, HAS_BODY
from xlapipe.time.cost.library_calls import library_call

VECTOR = "vector"
_ALGORITHM_TYPE = re.compile(r"dot_(bf16|f16|tf32|f32|f64)_")
ATTENTION_PRODUCTS = {"forward": 2, "backward": 5}
"""Products of cuDNN's flash attention; one of those backward is recomputed."""


class Flops:
    """Counter of operations, for the instructions of one plan."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._module = module
        self._reduced: Counter[str] = Counter()
        for gemm in plan.gemms:
            if gemm.backend is GemmBackend.REDUCE:
                self._reduced[gemm.instruction] += 2 * gemm.shapes[0].elements

    def of(self, instruction: Instruction, scope: Computation) -> Mapping[str, int] | None:
        """Operations of one launch by type; None for a kernel whose operations are unknown."""
        call = library_call(instruction, scope, self._module)
        if instruction.opcode == "custom-call" or call is not None:
            return self._custom_call(*(call or (instruction, scope)))
        flops: Counter[str] = Counter()
        if instruction.name in self._reduced:
            flops[VECTOR] += self._reduced[instruction.name]
        for contracting, body in self.contracting(instruction, scope):
            if contracting.contraction is None:
                return None
            flops[type_of(contracting, body)] += flops_of(contracting, body)
        return dict(flops)

    def contracting(
        self, instruction: Instruction, scope: Computation
    ) -> Iterator[tuple[Instruction, Computation]]:
        """The dots and convolutions in an instruction and its body."""
        if instruction.opcode in CONTRACTS:
            yield instruction, scope
        elif instruction.opcode in HAS_BODY:
            for name in instruction.called_computations:
                body = self._module.computations[name]
                if body.opcodes.isdisjoint(CONTRACTS | HAS_BODY):
                    continue
                for inner in body.instructions:
                    yield from self.contracting(inner, body)

    def _custom_call(
        self, instruction: Instruction, scope: Computation
    ) -> Mapping[str, int] | None:
        target = instruction.custom_call_target or ""
        if target.startswith("__cublas$"):
            return _gemm_call(instruction, scope)
        if target.startswith("__cudnn$conv") and instruction.contraction is not None:
            return {type_of(instruction, scope): _convolution_call(instruction, scope, target)}
        if target.startswith("__cudnn$fmha"):
            return _attention_call(instruction, scope, target)
        return None


def _shape_of(instruction: Instruction, scope: Computation, position: int) -> Shape:
    path = operand_index(instruction, position)
    return scope.by_name[instruction.operands[position]].shape.at(path)


def flops_of(instruction: Instruction, scope: Computation) -> int:
    """Operations of a dot or convolution: two per element of the result and per term of its sum."""
    terms = terms_of(instruction, scope)
    return _complex_factor(instruction, scope) * instruction.shape.elements * terms


def terms_of(instruction: Instruction, scope: Computation) -> int:
    """Terms of the sum for each element of the result of a dot or convolution.

    XLA for TPUs writes a product as a convolution. A dimension of its window is one of the result
    too, for batches and rows, of which one place meets the operand; or else its places are summed.
    """
    assert instruction.contraction is not None
    contracted, places = instruction.contraction.dims, instruction.contraction.starts
    if instruction.opcode != "convolution":
        return _terms(_shape_of(instruction, scope, 0), contracted)
    if (instruction.op_name or "").endswith("dot_general"):
        sizes = dict(enumerate(instruction.shape.dims))
        pairs = zip(contracted, places, strict=False)
        contracted = tuple(dim for dim, place in pairs if sizes.get(place, 1) == 1)
    return _terms(_shape_of(instruction, scope, 1), contracted)


def _terms(operand: Shape, contracted: Iterable[int]) -> int:
    """Terms of the sum for each element of the result, over these dimensions of an operand."""
    dims = operand.dims
    return prod(dims[dim] for dim in contracted if dim < len(dims))


def _complex_factor(instruction: Instruction, scope: Computation) -> int:
    """Operations per multiply-add; that of complex numbers is four of real ones."""
    return 8 if _shape_of(instruction, scope, 0).element.startswith("c") else 2


def type_of(instruction: Instruction, scope: Computation) -> str:
    """The type whose peak bounds a product."""
    contraction = instruction.contraction
    if contraction is not None and contraction.algorithm:
        match = _ALGORITHM_TYPE.match(contraction.algorithm)
        if match is not None:
            return VECTOR if match[1] == "f32" else match[1]
    return _element_type(_shape_of(instruction, scope, 0))


def _element_type(shape: Shape) -> str:
    return shape.arrays[0].element if shape.arrays else ""


def _gemm_call(instruction: Instruction, scope: Computation) -> Mapping[str, int] | None:
    """Operations of a cuBLAS gemm, from the dot's dimensions in its config."""
    try:
        config: Any = json.loads(instruction.backend_config)["gemm_backend_config"]
        numbers = config["dot_dimension_numbers"]
        contracting = [int(dim) for dim in numbers["lhs_contracting_dimensions"]]
    except (ValueError, KeyError, TypeError):
        return None
    first = _shape_of(instruction, scope, 0)
    products = instruction.shape.arrays[0].elements * _terms(first, contracting)
    return {_element_type(first): _complex_factor(instruction, scope) * products}


def _convolution_call(instruction: Instruction, scope: Computation, target: str) -> int:
    """Operations of cuDNN's convolutions; the gradients do those of the forward pass."""
    assert instruction.contraction is not None
    first = _shape_of(instruction, scope, 0)
    second = _shape_of(instruction, scope, 1)
    result = instruction.shape.arrays[0]
    if "BackwardInput" in target:
        kernel, output = second, first
    elif "BackwardFilter" in target:
        kernel, output = result, second
    else:
        kernel, output = second, result
    return 2 * output.elements * _terms(kernel, instruction.contraction.dims)


def _attention_call(
    instruction: Instruction, scope: Computation, target: str
) -> Mapping[str, int] | None:
    """Operations of cuDNN's attention; half of them under a causal mask."""
    try:
        config: Any = json.loads(instruction.backend_config)["cudnn_fmha_backend_config"]
        scores = [int(dim) for dim in config["intermediate_tensor_shape"]["dimensions"]]
    except (ValueError, KeyError, TypeError):
        return None
    query = _shape_of(instruction, scope, 0)
    rows = prod(scores[:-1])
    if not rows:
        return None
    products = ATTENTION_PRODUCTS["backward" if "Backward" in target else "forward"]
    flops = 2 * products * prod(scores) * (query.elements // rows)
    causal = "CAUSAL" in str(config.get("mask_type"))
    return {_element_type(query): flops // 2 if causal else flops}
