"""xlapipe diff: names do not matter, every difference is stated, every byte accounted for."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.differences.replan import (
    entry_of,
    renamed,
    with_allocation,
    with_instructions,
)
from tests.shared.dumps import DATA, DIRECTORIES, ROOT, name_of, one_of_each
from tests.shared.programs import with_facts
from xlapipe.cli import main
from xlapipe.differences import Difference, compare
from xlapipe.differences.changes import (
    Action,
    HiddenChange,
    InstructionCategory,
    InstructionChange,
    MemoryRole,
    SlackReason,
)
from xlapipe.differences.compare import compare_opened
from xlapipe.differences.instruction_changes import split_k
from xlapipe.dump.dump import Dump, read_file
from xlapipe.inductor.open_path import open_path
from xlapipe.plans.program import Program
from xlapipe.plans.shapes import Shape, shape_of

GOLDENS = sorted(path.parent for path in (ROOT / "hlo_dumps").glob("*/h200-*/manifest.json"))
UPGRADE = Path(__file__).parent / "upgrade"
STEP = DATA / "jaxlib-0.11.2" / "step"


@cache
def program(path: Path) -> Program:
    return open_path(path)


def golden(workload: str, policy: str) -> Path:
    (path,) = (ROOT / "hlo_dumps" / workload).glob(f"h200-{policy}-jax*")
    return path


def texts_of(difference: Difference) -> list[str]:
    """Every sentence, those of the account with their bytes."""
    return [
        ("" if item.delta_bytes is None else f"{item.delta_bytes:+,} B ") + item.text
        for item in difference.sentences()
    ]


def assert_accounted(difference: Difference) -> None:
    """Every byte of the difference, in the data and in the sentences."""
    assert sum(line.delta_bytes for line in difference.account) == difference.delta_bytes
    sentences = difference.sentences().account
    assert sum(sentence.delta_bytes or 0 for sentence in sentences) == difference.delta_bytes
    sizes = [abs(sentence.delta_bytes or 0) for sentence in sentences]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 not in sizes


# The same plan.


@pytest.mark.parametrize("path", one_of_each(GOLDENS), ids=name_of)
def test_a_golden_does_not_differ_from_itself(path: Path) -> None:
    difference = compare(program(path), program(path))
    assert difference.same
    assert texts_of(difference) == []


@pytest.mark.parametrize("path", DIRECTORIES, ids=name_of)
def test_a_dump_of_xla_does_not_differ_from_itself(path: Path) -> None:
    assert texts_of(compare(program(path), program(path))) == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    path=st.sampled_from(
        [*DIRECTORIES, golden("qwen3-prefill", "triton"), golden("qwen3-decode", "cublas")]
    ),
    seed=st.integers(0, 2**32),
)
def test_names_and_numbers_do_not_matter(path: Path, seed: int) -> None:
    original = program(path)
    other = replace(original, plan=renamed(original.plan, random.Random(seed)))
    for one, two in ((original, other), (other, original)):
        assert texts_of(compare(one, two)) == []


def test_a_dump_renamed_in_its_text_is_the_same(tmp_path: Path) -> None:
    golden_dump, source, copy = (
        golden("qwen3-step", "cublas"),
        tmp_path / "source",
        tmp_path / "copy",
    )
    for folder in (source, copy):
        folder.mkdir()
        values = "buffer-assignment-values.txt"
        (folder / values).write_bytes(read_file(golden_dump, values))
    for name in ("after_optimizations.txt", "buffer-assignment.txt", "live-range.txt"):
        text = read_file(golden_dump, name).decode()
        (source / name).write_text(text)
        text = re.sub(r"(?<![\w.])(loop_\w*fusion|custom-call|fusion)(?=[.\d]*\b)", r"q_\1", text)
        (copy / name).write_text(
            text.replace("q_fusion(", "fusion(").replace("q_custom-call(", "custom-call(")
        )
    assert "%q_custom-call" in (copy / "after_optimizations.txt").read_text()
    difference = compare_opened(
        open_path(source / "buffer-assignment.txt"), open_path(copy / "buffer-assignment.txt")
    )
    assert texts_of(difference) == []


# Pairs of real dumps: every byte is accounted for.


def pairs() -> Iterator[tuple[Path, Path]]:
    for workload in ("qwen3-decode", "qwen3-prefill", "qwen3-step", "qwen3-step-donated"):
        yield from combinations([golden(workload, p) for p in ("cublas", "triton")], 2)
    for policy in ("cublas", "triton"):
        yield golden("qwen3-step", policy), golden("qwen3-step-donated", policy)
        yield golden("qwen3-prefill", policy), golden("qwen3-decode", policy)
    for name in ("step", "sharded"):
        yield from combinations(sorted(DATA.glob(f"*/{name}")), 2)
    yield DATA / "jaxlib-0.4.30" / "cpu", DATA / "jaxlib-0.9.2" / "cpu"
    yield DATA / "jaxlib-0.9.2" / "cpu", DATA / "jaxlib-0.9.2" / "step"
    yield UPGRADE / "jaxlib-0.9.2", UPGRADE / "jaxlib-0.10.2"


@pytest.mark.parametrize(("a", "b"), list(pairs()), ids=lambda path: "/".join(path.parts[-2:]))
def test_every_byte_is_accounted_for(a: Path, b: Path) -> None:
    forward, backward = compare(program(a), program(b)), compare(program(b), program(a))
    assert not forward.same
    assert_accounted(forward)
    assert_accounted(backward)
    assert forward.delta_bytes == -backward.delta_bytes


def test_without_live_ranges_the_account_is_one_line() -> None:
    a, b = (program(golden("qwen3-step", policy)) for policy in ("cublas", "triton"))
    blind = replace(b, plan=replace(b.plan, live_ranges=None))
    difference = compare(a, blind)
    assert_accounted(difference)
    (line,) = [item for item in difference.account if item.place is MemoryRole.TEMP]
    assert line.room is SlackReason.UNKNOWN
    assert line.delta_bytes == 786_432 - 1_312_016
    assert any("without live ranges" in text for text in texts_of(difference))


# The known case: an upgrade of jaxlib that made temporary memory four times as large.


def test_the_upgrade_that_quadrupled_temp_is_explained() -> None:
    difference = compare_opened(
        open_path(UPGRADE / "jaxlib-0.9.2"), open_path(UPGRADE / "jaxlib-0.10.2")
    )
    assert difference.a_totals.temp_bytes == 2_621_440
    assert difference.b_totals.temp_bytes == 10_747_904
    assert difference.first_stage is not None
    assert difference.first_stage.startswith("lowering")
    assert texts_of(difference)[:2] == [
        "+4,718,592 B temp: dot at models/qwen3/projection.py:19 (layers_0/mlp/gate_up_proj) "
        "became split-K 2, bf16[128,6144] → f32[2,128,6144], tiles [16,8] → [1,16,8]",
        "+3,932,160 B temp: dot at models/qwen3/projection.py:19 (layers_0/attention/o_proj) "
        "became split-K 8, bf16[128,1024] → f32[8,128,1024], tiles [16,8] → [1,16,8]",
    ]
    assert "-256 B constant f32[64]: 256 B, only in A" in texts_of(difference)
    assert (
        "2 × dot at models/qwen3/projection.py:19 (layers_*/attention/qkv_proj) became split-K 4, "
        "bf16[128,4096] → f32[4,128,4096], tiles [16,8] → [1,16,8]"
    ) in texts_of(difference)


def test_a_gemm_on_another_backend_is_stated_with_its_cost() -> None:
    a, b = (program(golden("qwen3-prefill", policy)) for policy in ("cublas", "triton"))
    difference = compare(a, b)
    gemms = [
        item
        for item in difference.changes
        if isinstance(item, InstructionChange) and item.what is InstructionCategory.GEMM
    ]
    assert len(gemms) == 13
    assert all(item.action is Action.CHANGED for item in gemms)
    assert all(_aspect(item, "backend") == ("backend", "cublaslt", "triton") for item in gemms)
    lines = [item for item in difference.account if item.room is SlackReason.PACKING]
    assert [item.delta_bytes for item in lines] == [16 - 789_504]
    packing = "packing: the arenas lay out their values differently"
    assert any(packing in text for text in texts_of(difference))


def _aspect(change: InstructionChange, name: str) -> tuple[str, str, str]:
    return next((item.name, item.a, item.b) for item in change.aspects if item.name == name)


def test_tuned_tiles_are_stated() -> None:
    dumps = ROOT / "hlo_dumps" / "qwen3-decode"
    (tuned,) = dumps.glob("h100_sxm-auto-tuned-jax*")
    a, b = program(golden("qwen3-decode", "triton")), program(tuned)
    texts = texts_of(compare(a, b))
    assert (
        "2 × dot at models/qwen3/modules/attention.py:31 (layers_*/attention/scores) "
        "num_warps 2 → 4, tiles [1,8,16] → [1,8,64]"
    ) in texts


# Real changes show.


def test_a_larger_argument_shows() -> None:
    original = program(STEP)
    index = next(a.index for a in original.plan.allocations if a.parameter_number == 0)
    size = original.plan.allocations[index].size_bytes
    other = with_allocation(
        original.plan, index, lambda item: replace(item, size_bytes=size + 4096)
    )
    difference = compare(original, replace(original, plan=other))
    assert_accounted(difference)
    assert texts_of(difference) == [f"+4,096 B argument weights: {size:,} B → {size + 4096:,} B"]


def test_a_loop_body_is_compared_inside() -> None:
    original = program(STEP)
    assert original.plan.module is not None
    body = next(
        original.plan.module.computations[item.called_computations[0]]
        for item in entry_of(original.plan).instructions
        if item.opcode == "while"
    )
    fusion = next(item for item in body.instructions if item.opcode == "fusion")
    other = with_instructions(
        original.plan,
        body.name,
        (
            item._replace(fusion_kind="kCustom") if item.name == fusion.name else item
            for item in body.instructions
        ),
    )
    changes = compare(original, replace(original, plan=other)).changes
    assert [item.a for item in changes if isinstance(item, InstructionChange)] == [fusion.name]


def test_a_changed_literal_shows_though_plans_do_not_record_it(tmp_path: Path) -> None:
    source, copy = UPGRADE / "jaxlib-0.10.2", tmp_path / "copy"
    shutil.copytree(source, copy)
    (packed,) = copy.glob("*gpu_after_optimizations.txt.gz")
    import gzip

    text = gzip.decompress(packed.read_bytes()).decode()
    assert "constant(1e-06)" in text
    packed.write_bytes(gzip.compress(text.replace("constant(1e-06)", "constant(1e-05)").encode()))
    difference = compare_opened(open_path(source), open_path(copy))
    (change,) = difference.changes
    assert isinstance(change, HiddenChange)
    assert ("1e-06" in change.a, "1e-05" in change.b) == (True, True)


def test_settings_that_differ_are_listed_and_another_jaxlib_prints_hlo_differently() -> None:
    a = open_path(golden("qwen3-step", "cublas"))
    assert isinstance(a, Dump)
    manifest = replace(
        a.manifest,
        workload="other",
        target="h100",
        target_description="NVIDIA H100",
        gemm_policy="auto",
        tuned=True,
        versions={**a.manifest.versions, "jaxlib": "0.1"},
        options={**a.manifest.options, "more": "1"},
    )
    b = replace(a, facts=manifest)
    assert a.hlo_after is not None and "constant(1)" in a.hlo_after
    b.__dict__["hlo_after"] = a.hlo_after.replace("constant(1)", "constant(2)")
    difference = compare_opened(a, b)
    assert difference.changes == ()
    assert difference.context == {
        "workload": ("qwen3-step", "other"),
        "target": (f"h200 ({a.manifest.target_description})", "h100 (NVIDIA H100)"),
        "gemm policy": ("cublas", "auto"),
        "autotuning": (a.manifest.autotuning, "tuned on NVIDIA H100"),
        "jaxlib": (a.manifest.versions["jaxlib"], "0.1"),
        "option more": ("none", "1"),
    }
    assert compare_opened(b, a).context["option more"] == ("1", "none")


def shapes(*texts: str) -> tuple[Shape, ...]:
    return tuple(map(shape_of, texts))


def test_split_k_is_distinguished_from_a_larger_batch() -> None:
    whole = shapes("bf16[8,64]{1,0}", "bf16[64,32]{1,0}", "bf16[8,32]{1,0}")
    split = shapes("bf16[8,4,16]{2,1,0}", "bf16[4,16,32]{2,1,0}", "f32[4,8,32]{2,1,0}")
    assert split_k(whole, split) == ("1", "4")
    assert split_k(split, whole) == ("4", "1")
    finer = shapes("bf16[8,8,8]{2,1,0}", "bf16[8,8,32]{2,1,0}", "f32[8,8,32]{2,1,0}")
    assert split_k(split, finer) == ("4", "8")
    assert split_k(whole, whole) is None
    padded = shapes("bf16[32,64]{1,0}", "bf16[64,32]{1,0}", "bf16[32,32]{1,0}")
    assert split_k(whole, padded) is None
    batch = shapes("bf16[4,8,64]{2,1,0}", "bf16[64,32]{1,0}", "bf16[4,8,32]{2,1,0}")
    assert split_k(whole, batch) is None
    assert split_k(batch, whole) is None


# Different programs.


def test_different_programs_are_named_before_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(golden(workload, "triton")) for workload in ("qwen3-step", "qwen3-step-donated")]
    assert main(["diff", *paths]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("the programs differ"))
    total = next(at for at, line in enumerate(lines) if line.startswith("total "))
    assert total < at < lines.index("bytes")
    shown = "\n".join(lines)
    assert "argument p17 s32[128]: only in B" in shown
    assert "p16 bf16[2,4233,16,8,128]: donated in B, not in A" in shown
    assert "-138,706,944 B  output out[3]: 138,706,944 B, only in A" in shown


def test_programs_that_differ_in_donation_alone() -> None:
    donated = program(golden("qwen3-decode", "triton"))
    leaves = tuple(replace(leaf, donated=False) for leaf in donated.arguments)
    difference = compare(with_facts(donated, arguments=leaves), donated)
    assert difference.programs
    assert difference.programs_note == "the programs differ only in what is donated"


# The command.


def test_exit_codes_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    cublas, triton = (str(golden("qwen3-step", policy)) for policy in ("cublas", "triton"))
    assert main(["diff", cublas, cublas]) == 0
    assert "the plans are the same" in capsys.readouterr().out
    assert main(["diff", "--json", cublas, triton]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["same"] is False
    assert data["context"]["gemm policy"] == ["cublas", "triton"]
    assert data["first_stage"].startswith("XLA's optimisation")
    assert sum(line["delta_bytes"] for line in data["account"]) == data["delta_bytes"]
    assert data["delta_bytes"] == (
        data["b"]["totals"]["total_allocation_bytes"]
        - data["a"]["totals"]["total_allocation_bytes"]
    )
    assert len(data["changes"]) == sum(item["count"] for item in data["sentences"]["changes"])
    assert {item["change"] for item in data["changes"]} >= {"InstructionChange", "ThunkChange"}


def test_any_dump_of_xla_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = (UPGRADE / "jaxlib-0.9.2").glob("*buffer-assignment.txt.gz")
    assert main(["diff", str(text), str(UPGRADE / "jaxlib-0.10.2")]) == 1
    assert "became split-K 8" in capsys.readouterr().out


def test_a_dump_of_a_newer_schema_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = golden("qwen3-step", "cublas"), tmp_path / "newer"
    shutil.copytree(source, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    assert main(["diff", str(source), str(copy)]) == 2
    message = capsys.readouterr().err
    assert "made by a newer xlapipe; fix: update xlapipe" in message
    assert str(copy) in message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "diff takes two of dumps and workloads"),
        (["one"], "found 1 without --workload"),
        (["one", "two", "three"], "found 3 without --workload"),
        (["no/where", "no/where"], "no/where: expected a file or directory"),
        (["nowhere", "nowhere"], "unknown workload 'nowhere'"),
        (["a", "b", "--workload", "qwen3-step"], "not both"),
        (["a", "b", "--options", "xla_a=1"], "--workload"),
        (["--workload", "qwen3-step"], "found none"),
        (["--workload", "qwen3-step", "--gemm", "cublas"], "found none"),
        (["--workload", "qwen3-step", "--gemm", "cublas,tritn"], "--gemm cublas,tritn"),
        (["--workload", "qwen3-step", "--gemm", "cublas,cublas"], "different ones"),
        (["--workload", "qwen3-stp", "--gemm", "cublas,triton"], "unknown workload"),
        (["--workload", "qwen3-step", "--options", "enable_triton=1"], "xla_name=value"),
        (["--workload", "qwen3-step", "--options", "xla_dump_to=x"], "xla_dump_to"),
        (
            ["--workload", "qwen3-step", "--gemm", "cublas,triton", "--options", "xla_a=1"],
            "found both",
        ),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("xlapipe: error: ")
    assert expected in message


def test_reading_two_dumps_imports_no_jax() -> None:
    path = str(golden("qwen3-step", "cublas"))
    code = (
        "import sys; from xlapipe.cli import main; "
        f"code = main(['diff', {path!r}, {path!r}]); "
        "bad = {'jax', 'jaxlib', 'flax', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {bad}' if bad else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
