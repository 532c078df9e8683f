"""Wrapper code: allocations, `del` and reuse in order; nothing of it runs."""

import gzip
from pathlib import Path

import pytest

from tests.inductor import written
from xlapipe.errors import DumpError
from xlapipe.inductor.graph_files import is_inductor
from xlapipe.inductor.inductor_plan import GraphKind, InductorPlan, KernelKind
from xlapipe.inductor.reader import read_inductor
from xlapipe.plans.buffers import InputOutputAlias


def plan_of(tmp_path: Path, text: str) -> InductorPlan:
    """The one plan in `text`."""
    path = tmp_path / "output_code.py"
    path.write_text(text)
    (plan,) = read_inductor(path).plans
    return plan


def folder_of(tmp_path: Path) -> Path:
    """A trace folder with a forward and a backward graph."""
    for name, code in (("forward0", written.FORWARD), ("backward0", written.BACKWARD)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "output_code.py.gz").write_bytes(gzip.compress(code.encode()))
    (tmp_path / "forward0" / "fx_graph_readable.py").write_text(written.FX_FORWARD)
    return tmp_path


def test_reuse_and_outputs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.FORWARD)
    totals = plan.totals
    assert plan.exact
    assert plan.kind == GraphKind.FORWARD
    assert totals.own_peak_bytes == 2 * 4 * 16 * 4  # buf1 is buf0's memory, and buf2
    assert totals.output_bytes == totals.end_bytes == 512
    assert totals.argument_bytes == 8 * 16 * 4 + 4 * 8 * 4
    # primals_2 is returned as it came: no output of the call's own.
    assert [(output.name, output.argument) for output in plan.outputs] == [
        ("buf2", None),
        ("primals_2", 1),
        ("buf1", None),
    ]
    assert [kernel.kind for kernel in plan.kernels] == [
        KernelKind.EXTERN,
        KernelKind.TRITON,
        KernelKind.FALLBACK,
    ]
    assert plan.kernels[1].writes == ("buf1",)
    assert totals.unknown_allocations == 0  # copy_ takes no memory


def test_a_lone_backward_graph_frees_no_argument(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.BACKWARD)
    assert not any(argument.given_away for argument in plan.arguments)
    assert plan.totals.own_peak_bytes >= plan.totals.end_bytes == 512  # the gradient
    assert any("no forward graph" in note for note in plan.notes)


def test_a_folder_links_forward_and_backward(tmp_path: Path) -> None:
    forward, backward = read_inductor(folder_of(tmp_path)).plans
    assert (forward.kind, backward.kind) == (GraphKind.FORWARD, GraphKind.BACKWARD)
    assert forward.totals.saved_bytes == 256  # relu; x is an argument
    assert [output.saved for output in forward.outputs] == [False, True, True]
    assert backward.totals.given_argument_bytes == 256
    assert backward.notes == ()
    assert str(forward.kernels[0].source) == "net.py:7"


def test_saved_values_that_the_user_has_too_are_not_given_away(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    code = written.FORWARD.replace("return (buf2, ", "return (buf1, ")
    (folder / "forward0" / "output_code.py.gz").write_bytes(gzip.compress(code.encode()))
    forward, backward = read_inductor(folder).plans
    assert forward.totals.saved_bytes == 0
    assert backward.totals.given_argument_bytes == 0
    assert backward.totals.end_bytes == 512


def test_a_pool_and_a_partition(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.POOL_AND_PARTITION)
    # After the pool of 512 B is freed, buf0 [16, 16] and the partition's buf2 [4, 16].
    assert plan.totals.own_peak_bytes == 16 * 16 * 4 + 4 * 16 * 4
    assert plan.totals.output_bytes == plan.totals.end_bytes == 256
    pool = next(a for a in plan.allocations if a.size_bytes == 512)
    lines = written.POOL_AND_PARTITION.splitlines()
    assert lines[(plan.lifetimes[pool.index].freed_line or 0) - 1].strip() == "del pool0"
    assert [(v.name, v.offset_bytes) for v in pool.values if v.name != "pool0"] == [
        ("buf3", 0),
        ("buf4", 256),
    ]
    # The host's memory is not the device's.
    assert not any(value.name == "buf5" for a in plan.allocations for value in a.values)


def test_symbols_fallbacks_and_collectives(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, written.DYNAMIC)
    # With s0 = 8: buf1 512 B, buf3 256 B, its gathered twin 512 B, buf6 512 B; buf2 is unknown.
    assert plan.totals.own_peak_bytes == 512 + 256 + 512 + 512
    assert plan.totals.argument_bytes == 8 * 16 * 4
    (unknown,) = plan.unknown
    assert unknown.name == "torch.ops.aten.sort.default"
    assert unknown.result_bytes is None
    (gathered,) = plan.collectives
    assert gathered.kind == "all-gather"
    assert (gathered.operand_bytes, gathered.output_bytes) == (256, 512)
    assert gathered.group_size == 2
    assert gathered.overlapped_by == ("extern_kernels.mm",)
    assert gathered.used


def test_arguments_changed_in_place_are_aliases(tmp_path: Path) -> None:
    code = written.FORWARD.replace("aten.copy_(buf2, buf1)", "aten.copy_(primals_2, buf1)")
    plan = plan_of(tmp_path, code)
    assert plan.aliases == (InputOutputAlias(1, None),)
    assert plan.arguments[1].mutated


@pytest.mark.parametrize("make", [written.as_log, written.as_torch_log])
def test_a_log(tmp_path: Path, make: object) -> None:
    path = tmp_path / "run.log"
    path.write_text(make(written.FORWARD, written.BACKWARD))  # type: ignore[operator]
    assert is_inductor(path)
    forward, backward = read_inductor(path).plans
    assert (forward.graph, backward.graph) == ("0_forward", "0_backward")
    assert forward.totals.saved_bytes == backward.totals.given_argument_bytes == 256
    lines = path.read_text().splitlines()
    assert "extern_kernels.mm(primals_2" in lines[forward.kernels[0].line - 1]
    assert "extern_kernels.mm(reinterpret" in lines[backward.kernels[1].line - 1]


def test_nothing_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    code = f"open({str(marker)!r}, 'w').write('x')\n" + written.FORWARD.replace(
        "args.clear()", f"args.clear(); open({str(marker)!r}, 'w')"
    )
    plan_of(tmp_path, code)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("del buf0  # reuse", "del buf7  # reuse", "a name that is bound"),
        ("extern_kernels.mm(primals_2,", "extern_kernels.mm(nothing,", "defined before"),
        ("buf0 = empty_strided_cuda((4, 16)", "buf0 = empty_strided_cuda((4, -16)", "not below 0"),
        ("(4, 16), (16, 1), torch.float32)", "(4, 16), (16,), torch.float32)", "one stride"),
        ("torch.float32)\n            # Topo", "torch.float33)\n            # Topo", "a dtype"),
        ("with torch.cuda._DeviceGuard(0):", "with torch.cuda._DeviceGuard(0)", "Python"),
        ("def call(self, args):", "def cull(self, args):", "call"),
    ],
)
def test_damage_is_an_error_with_the_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in written.FORWARD
    with pytest.raises(DumpError, match=rf"output_code\.py:\d+: expected .*{expected}.*fix: "):
        plan_of(tmp_path, written.FORWARD.replace(old, new, 1))


def test_a_view_beyond_its_storage(tmp_path: Path) -> None:
    code = written.FORWARD.replace(
        "buf1 = buf0;", "buf1 = reinterpret_tensor(buf0, (4, 17), (17, 1), 0);"
    )
    with pytest.raises(DumpError, match="a view within the 256 bytes of buf0"):
        plan_of(tmp_path, code)
