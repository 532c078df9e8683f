"""Names that `--json`, goldens and users' scripts hold: changing one breaks them."""

from enum import StrEnum

import pytest

from xlapipe.differences.changes import Action, InstructionCategory, MemoryRole
from xlapipe.differences.compilers.tensor_leaves import Match
from xlapipe.plans.buffers import AllocationKind
from xlapipe.plans.donation import DonationOutcome
from xlapipe.plans.gemms import GemmBackend
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.missing_memory import MissingKind
from xlapipe.plans.occupancy import Role
from xlapipe.time.cost.flops import VECTOR


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (
            AllocationKind,
            "parameter, constant, thread-local, maybe-live-out, preallocated-temp",
        ),
        (Role, "parameter, alias, output, temp, constant, thread-local"),
        (MemorySpace, "hbm, host, vmem, smem, other"),
        (MissingKind, "cuDNN call, sort, convolution"),
        (
            GemmBackend,
            "cublas, cublaslt, cublaslt_f8, triton, cudnn, rocblas, hipblaslt, "
            "hipblaslt_f8, miopen, reduce, mxu, other",
        ),
        (
            DonationOutcome,
            "aliased, aliased, but copied, same buffer twice, buffer donor only, unused, dropped",
        ),
        (MemoryRole, "argument, output, temp, constant, thread-local"),
        (InstructionCategory, "gemm, collective, copy, fusion, instruction"),
        (Action, "added, removed, changed"),
        (Match, "same, transposed, other dtype, same bytes, only Inductor, only XLA"),
    ],
)
def test_names_of_kinds(names: type[StrEnum], values: str) -> None:
    assert ", ".join(names) == values


def test_name_of_the_type_of_vector_operations() -> None:
    assert VECTOR == "vector"
