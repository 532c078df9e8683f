"""Find the matrix products (gemms) of a module and the backend that computes each.

Thunk kinds change between versions and do not distinguish Triton from other kernels, so gemms are
found in the optimised HLO: custom calls by target, fusions by backend kind and body, and, at batch
size 1, the reductions of a product into which XLA rewrites a dot. On TPUs they are convolutions.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.devices.platforms import PLATFORMS
from xlapipe.plans.dataflow import PASS_THROUGH, Dataflow, Value, dataflow_of
from xlapipe.plans.hlo import HloModule, Instruction, SourceLine
from xlapipe.plans.opcodes import CONTRACTS, DOTS
from xlapipe.plans.shapes import Shape
from xlapipe.plans.short_repr import short_repr


class GemmBackend(StrEnum):
    """What computes a matrix product: a library, a kernel, or the matrix units of a TPU."""

    CUBLAS = "cublas"
    CUBLASLT = "cublaslt"
    CUBLASLT_F8 = "cublaslt_f8"
    TRITON = "triton"
    CUDNN = "cudnn"
    ROCBLAS = "rocblas"
    HIPBLASLT = "hipblaslt"
    HIPBLASLT_F8 = "hipblaslt_f8"
    MIOPEN = "miopen"
    REDUCE = "reduce"
    MXU = "mxu"
    OTHER = "other"


# The HLO does not name its platform, so the tables of all platforms are joined. Where two use the
# same name for different backends, `Plan.gemms` replaces it.
_CALLS = [row for platform in PLATFORMS for row in platform.gemm_calls]
_FUSION_KINDS = [row for platform in PLATFORMS for row in platform.gemm_fusion_kinds]
_MAY_BE_A_GEMM = CONTRACTS | {"custom-call", "fusion", "reduce"}


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix product of the optimised module.

    Attributes:
      instruction: the scheduled instruction that computes it.
      shapes: shapes of the operands and, last, of the result.
      op_name: op_name of the original dot, e.g. `jit(step)/layers_0/mlp/down_proj/dot_general`.
      fast_accumulation: whether a float8 gemm on cuBLASLt uses it; None for other gemms.
    """

    __repr__ = short_repr

    instruction: str
    backend: GemmBackend
    shapes: tuple[Shape, ...]
    op_name: str | None
    source: SourceLine | None
    fast_accumulation: bool | None = None

    @property
    def backend_text(self) -> str:
        """The backend, and whether it accumulates fast."""
        return f"{self.backend}{', fast accumulation' if self.fast_accumulation else ''}"


def find_gemms(module: HloModule) -> tuple[Gemm, ...]:
    """Every matrix product of `module`, in the order of its computations' instructions."""
    dataflow = dataflow_of(module)
    gemms: list[Gemm] = []
    for computation, instruction in module.scheduled():
        site = Value(computation, instruction)
        gemms.extend(_custom_call(dataflow, site))
        if instruction.opcode == "fusion":
            gemms.extend(_fusion(dataflow, site))
        elif instruction.opcode in DOTS:
            gemms.append(_gemm(dataflow, site, site, GemmBackend.OTHER))
        elif instruction.opcode == "reduce" and _reduces_a_dot(dataflow, site):
            gemms.append(_gemm(dataflow, site, site, GemmBackend.REDUCE))
        elif _is_product_on_mxu(site, site):
            gemms.append(_gemm(dataflow, site, site, GemmBackend.MXU))
    return tuple(gemms)


def is_dot(op_name: str | None) -> bool:
    """Whether the metadata's op_name is that of a JAX dot."""
    return op_name is not None and op_name.rpartition("/")[2] in (
        "dot_general",
        "ragged_dot_general",
    )


def _backend(name: str, table: Iterable[tuple[str, str]]) -> GemmBackend | None:
    """The backend of the first prefix in `table` that `name` starts with."""
    return next(
        (GemmBackend(backend) for prefix, backend in table if name.startswith(prefix)), None
    )


def _custom_call(dataflow: Dataflow, site: Value, scheduled: Value | None = None) -> Iterator[Gemm]:
    target = site.instruction.custom_call_target
    backend = _backend(target, _CALLS) if target else None
    if backend is not None:
        yield _gemm(dataflow, scheduled or site, site, backend)


def _fusion(dataflow: Dataflow, site: Value) -> Iterator[Gemm]:
    if not dataflow.body_has_any(site.instruction, _MAY_BE_A_GEMM):
        return
    kind = site.instruction.fusion_backend_kind or ""
    body = list(dataflow.body(site.instruction))
    dots = [inner for inner in body if inner.instruction.opcode in DOTS]
    if not body:
        # A dump with only the buffer assignment has no fusion bodies; the kind is all there is.
        if "gemm" in kind:
            yield _gemm(dataflow, site, site, GemmBackend.TRITON)
        return
    for inner in body:
        yield from _custom_call(dataflow, inner, site)
        if inner.instruction.opcode == "reduce" and _reduces_a_dot(dataflow, inner):
            yield _gemm(dataflow, site, inner, GemmBackend.REDUCE)
        if _is_product_on_mxu(inner, site):
            yield _gemm(dataflow, site, inner, GemmBackend.MXU)
    for dot in dots:
        yield _gemm(dataflow, site, dot, _backend(kind, _FUSION_KINDS) or GemmBackend.OTHER)


def _is_product_on_mxu(site: Value, scheduled: Value) -> bool:
    """Whether a convolution is a dot. XLA for TPUs writes every dot as one.

    A convolution of the program has the op_name of `conv_general_dilated`.
    """
    if site.instruction.opcode != "convolution":
        return False
    return is_dot(site.instruction.op_name) or (
        site.instruction.op_name is None and is_dot(scheduled.instruction.op_name)
    )


def _reduces_a_dot(dataflow: Dataflow, site: Value) -> bool:
    """Whether a reduce is a dot that XLA rewrote to multiply and reduce.

    The reduce has the dot's op_name; the multiply has it too, or none (on TPUs, and on GPUs after
    XLA converts its operands). The sum over split-K partials also has the dot's op_name, but its
    operands come from a gemm, not from a multiply.
    """
    op_name = site.instruction.op_name
    if not is_dot(op_name):
        return False
    return any(
        origin.instruction.opcode == "multiply" and origin.instruction.op_name in (op_name, None)
        for origin in dataflow.origins(site)
    )


def _gemm(dataflow: Dataflow, scheduled: Value, dot: Value, backend: GemmBackend) -> Gemm:
    by_name = dot.computation.by_name
    operands = [by_name[name].shape for name in dot.instruction.operands if name in by_name]
    candidates = (
        dot.instruction,
        scheduled.instruction,
        _reader_with_dot_name(dataflow, scheduled),
    )
    named = next(
        (
            instruction
            for instruction in candidates
            if instruction is not None and is_dot(instruction.op_name)
        ),
        dot.instruction,
    )
    fast_accumulation = None
    if backend is GemmBackend.CUBLASLT_F8:
        fast_accumulation = _accumulates_fast(dot.instruction.backend_config)
    return Gemm(
        instruction=scheduled.instruction.name,
        backend=backend,
        shapes=(*operands, dot.instruction.shape),
        op_name=named.op_name,
        source=named.source or dot.instruction.source or scheduled.instruction.source,
        fast_accumulation=fast_accumulation,
    )


def _accumulates_fast(backend_config: str) -> bool | None:
    """Whether XLA enables fast accumulation (IsFastAccumEnabled in cuda_blas_lt.cc).

    The dot's algorithm decides; if it is unset, the precision of its operands does, if known.
    """
    try:
        config = json.loads(backend_config)["gemm_backend_config"]["precision_config"]
    except (ValueError, KeyError):
        return None
    algorithm = config.get("algorithm", "ALG_UNSET")
    if algorithm != "ALG_UNSET":
        return str(algorithm).endswith("_FAST_ACCUM")
    return all(precision == "DEFAULT" for precision in config.get("operand_precision", ()))


def _reader_with_dot_name(dataflow: Dataflow, site: Value) -> Instruction | None:
    """The reader of `site` that has a dot's op_name; XLA drops it from a matrix-vector product."""
    users = (user for user, *_ in dataflow.users(site.computation, site.instruction.name))
    named = (user for user in users if user.opcode in PASS_THROUGH and is_dot(user.op_name))
    return next(named, None)


def requested_dots(module: HloModule) -> tuple[Instruction, ...]:
    """The dots of a module before optimisation."""
    return tuple(
        instruction for _, instruction in module.instructions() if instruction.opcode in DOTS
    )
