"""The reference dumps of Inductor: the figures that were read off them by hand."""

from pathlib import Path

import pytest

from xlapipe.dump.readers.file_contents import read_source
from xlapipe.inductor.inductor_plan import FindingKind
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.text import read_ir
from xlapipe.inductor.reader import InductorDump, read_inductor
from xlapipe.inductor.text_lines import TextLines
from xlapipe.plans.gemms import GemmBackend


@pytest.fixture(scope="module")
def fsdp(seeds: Path) -> InductorDump:
    return read_inductor(seeds / "000_43be01c397569ca8.txt")


@pytest.fixture(scope="module")
def resnet(seeds: Path) -> InductorDump:
    return read_inductor(seeds / "001_f2a980d458b1ffe8.txt")


def graph_of(dump: InductorDump) -> IrGraph:
    """The IR of a dump."""
    return IrGraph(read_ir(TextLines.of(read_source(dump.path))))


def test_fsdp_counts(fsdp: InductorDump) -> None:
    (plan,) = fsdp.plans
    graph = graph_of(fsdp)
    buffers = graph.buffers.values()
    assert (len(graph.leaves), len(buffers)) == (50, 74)
    assert sum(bool(buffer.mutations) for buffer in buffers) == 27
    assert sum(bool(buffer.aliases) for buffer in buffers) == 12
    assert sum(user.can_inplace for buffer in buffers for user in buffer.users) == 5
    reads = [dependency.kind for leaf in graph.leaves for dependency in leaf.reads]
    assert reads.count("WeakDep") == 3
    assert [storage.buffer for storage in plan.resized_storages] == ["buf0", "buf18", "buf36"]
    assert [gemm.backend for gemm in plan.gemms] == [GemmBackend.CUBLAS] * 5
    # Two of the five users that may write in place do.
    assert sum(len(allocation.values) == 2 for allocation in plan.allocations) == 2


def test_fsdp_collectives(fsdp: InductorDump) -> None:
    (plan,) = fsdp.plans
    kinds = [collective.kind for collective in plan.collectives]
    assert kinds == ["all-gather"] * 3 + ["reduce-scatter"] * 3
    sizes = {(c.kind, c.operand_bytes, c.output_bytes) for c in plan.collectives}
    assert sizes == {("all-gather", 256, 512), ("reduce-scatter", 512, 256)}
    assert {collective.group_size for collective in plan.collectives} == {2}
    # One gathered weight feeds nothing.
    assert [collective.used for collective in plan.collectives].count(False) == 1
    assert all(collective.end is not None for collective in plan.collectives)


def test_fsdp_findings(fsdp: InductorDump) -> None:
    (plan,) = fsdp.plans
    cloned = [f for f in plan.findings if f.kind == FindingKind.UNINITIALISED]
    assert [(finding.node, finding.size_bytes) for finding in cloned] == [
        ("op6", 512),
        ("op18", 512),
        ("op30", 512),
    ]


def test_resnet_counts(resnet: InductorDump) -> None:
    (plan,) = resnet.plans
    graph = graph_of(resnet)
    assert (len(graph.leaves), len(graph.buffers)) == (1104, 1157)
    calls = [leaf.kernel for leaf in graph.leaves]
    assert calls.count("torch.ops.aten.convolution_backward.default") == 105
    assert calls.count("extern_kernels.mm") == 2
    assert sum(leaf.is_nop for leaf in graph.leaves) == 265
    assert plan.kernel_counts["user_triton"] == 49 + 53 + 53 + 107
    assert plan.totals.unknown_allocations == 105


def test_resnet_bytes(resnet: InductorDump) -> None:
    (plan,) = resnet.plans
    assert len(plan.outputs) == 160
    assert plan.totals.output_bytes == 94_851_328
    assert plan.totals.own_peak_bytes == 23_523_899_648
    assert plan.totals.argument_bytes is None  # of most, the dump prints no layout
    assert not plan.exact


def test_resnet_duplicate_stores(resnet: InductorDump) -> None:
    (plan,) = resnet.plans
    stores = [f for f in plan.findings if f.kind == FindingKind.DUPLICATE_STORE]
    assert len(stores) == 139
    assert sum(store.size_bytes or 0 for store in stores) == 49_838_948_352


def test_spectral(seeds: Path) -> None:
    (plan,) = read_inductor(seeds / "002_0926b2a0123efc8b.txt").plans
    own = [a for a in plan.allocations if a.parameter_number is None]
    held = {tuple(value.name for value in a.values): a.size_bytes for a in own}
    assert held == {("buf0",): 1_048_576, ("buf1", "buf2"): 65_536, ("buf3",): 1_048_576}
    assert plan.totals.argument_bytes == 524_288 + 4_096 + 1_048_576 + 256 + 512
    assert plan.totals.own_peak_bytes == 1_048_576 + 65_536


def test_float8(seeds: Path) -> None:
    forward, backward = read_inductor(seeds / "004_11560de70615f418.txt").plans
    assert forward.totals.saved_bytes == backward.totals.given_argument_bytes == 41_943_048
    # 159,383,552 and 109,051,904 B are held in large buffers; scalars and partial sums are more.
    assert forward.totals.peak_with_arguments_bytes == 159_383_552 + 1_024 * 4 + 10
    assert backward.totals.peak_with_arguments_bytes == 109_051_904 + 14
    backends = [gemm.backend for gemm in (*forward.gemms, *backward.gemms)]
    assert backends == [GemmBackend.CUBLASLT_F8] * 3
    fast = [gemm.fast_accumulation for gemm in (*forward.gemms, *backward.gemms)]
    assert fast == [True, False, False]


def test_float8_findings(seeds: Path) -> None:
    forward, backward = read_inductor(seeds / "004_11560de70615f418.txt").plans
    strided = [f for f in forward.findings if f.kind == FindingKind.STRIDED_READ]
    assert strided[0].size_bytes == 67_108_864  # amax(W), read with stride 4096
    assert "4096 elements apart" in strided[0].detail
    assert str(strided[0].source).endswith("float8_linear.py:364")
    assert sum(f.kind == FindingKind.RECOMPUTED_REDUCTION for f in forward.findings) == 1
    wide = [f for f in (*forward.findings, *backward.findings) if f.kind == FindingKind.FLOAT64]
    assert len(wide) == 6
