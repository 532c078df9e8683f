"""Predicted tuning: XLA's fingerprints, nearest instructions, tables, and the user's locks."""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.time.predicted_lock_record import (
    error,
    error_bytes,
    record,
    right_share,
    time_errors,
)
from xlapipe.cli import main
from xlapipe.compile.known_locks import _known_results, added_locks, known_results, take_skipped
from xlapipe.compile.make_jobs import CompileSettings, jobs_of, jobs_to_compare
from xlapipe.compile.tuning import Tuned
from xlapipe.dump.autotune_lock import read_lock
from xlapipe.errors import TargetError, WorkloadError
from xlapipe.registry import WorkloadReference
from xlapipe.time.predicted_locks.attention import attention_workspace_bytes
from xlapipe.time.predicted_locks.basis import Basis
from xlapipe.time.predicted_locks.block_limits import block_limits, fitted
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, form_of
from xlapipe.time.predicted_locks.instructions import tuned_instructions
from xlapipe.time.predicted_locks.known_results import (
    TABLES,
    TRITON_COMMITS,
    KnownResults,
    results_of_lock,
)
from xlapipe.time.predicted_locks.plan_error import WORKSPACE_BYTES, stated_error_bytes
from xlapipe.time.predicted_locks.predict import nearest, predict_lock

REFERENCE = WorkloadReference("step", "step:workload")
LOCK = ROOT / "tests/gpu/zoo_locks/scan_gradient.json"
ENTRY = re.compile(r"^entries \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
# As jaxlib prints it before XLA assigns configs. XLA's own keys of it, from an H200's tuning log.
MODULE = """HloModule , entry_computation_layout={(bf16[4096,2048]{1,0})->bf16[4096,8192]{1,0}}

{
  tmp_0 = bf16[4096,2048]{1,0} parameter(0)
  tmp_1 = bf16[2048,8192]{1,0} parameter(1)
  ROOT tmp_2 = bf16[4096,8192]{1,0} dot(bf16[4096,2048]{1,0} tmp_0, bf16[2048,8192]{1,0} tmp_1), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY {
  tmp_0 = bf16[4096,2048]{1,0} parameter(0)
  tmp_1 = bf16[2048,8192]{1,0} parameter(1)
  ROOT tmp_2 = bf16[4096,8192]{1,0} fusion(bf16[4096,2048]{1,0} tmp_0, bf16[2048,8192]{1,0} tmp_1)\
, kind=kCustom, calls=
  {
    tmp_0 = bf16[4096,2048]{1,0} parameter(0)
    tmp_1 = bf16[2048,8192]{1,0} parameter(1)
    ROOT tmp_2 = bf16[4096,8192]{1,0} dot(bf16[4096,2048]{1,0} tmp_0, bf16[2048,8192]{1,0} tmp_1)\
, lhs_contracting_dims={1}, rhs_contracting_dims={0}
  }, backend_config={"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton_gemm"},\
"force_earliest_schedule":false,"reification_cost":[],"device_type":"DEVICE_TYPE_INVALID"}
}
"""
FINGERPRINT = "bab6246f5d09117c19230edc2335be34"


@pytest.fixture
def known() -> KnownResults:
    return KnownResults.read(TABLES / "h200.jsonl")


@pytest.fixture(autouse=True)
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "xlapipe/locks"


def test_the_key_of_an_instruction_is_that_of_xla() -> None:
    (text,) = tuned_instructions(MODULE)
    assert fingerprint(text) == FINGERPRINT
    assert fingerprint("bf16[4] fusion()") is None


def test_the_form_of_a_product() -> None:
    (text,) = tuned_instructions(MODULE)
    form = form_of(text)
    assert form is not None
    assert form == Form("dot bf16,bf16", "1;0", (1, 8192, 4096, 2048))
    (other,) = tuned_instructions(MODULE.replace("2048", "1024").replace("bf16", "f16"))
    smaller = form_of(other)
    assert smaller is not None
    # An octave of k, one of work, and other types.
    assert form.distance(smaller) == 4
    assert form.distance(replace(smaller, kind="__cudnn$convForward bf16")) is None


def test_what_is_known_is_taken_before_what_is_near(known: KnownResults) -> None:
    texts = tuned_instructions(MODULE)
    (near,) = predict_lock(texts, replace(known, results=known.results)).chosen.values()
    unknown = predict_lock(texts, known)
    # Both backends are near.
    assert unknown.basis == {**dict.fromkeys(Basis, 0), Basis.UNSURE: 1}
    assert FINGERPRINT in unknown.results
    tile = replace(near, fingerprint=FINGERPRINT, config="backend: TRITON", programs=("own",))
    own = predict_lock(texts, known.with_results([tile]))
    assert own.basis[Basis.KNOWN] == 1
    assert own.chosen[FINGERPRINT].backend == "TRITON"


def test_results_of_another_jaxlib_are_used_and_counted_as_such(
    known: KnownResults, tmp_path: Path
) -> None:
    texts = tuned_instructions(MODULE.replace("4096", "128").replace("8192", "256"))
    other = known.for_jaxlib("0.12.0.1")
    assert other is not None
    assert known.for_jaxlib("0.11.2") is known
    (here,), (there,) = (predict_lock(texts, it).chosen.values() for it in (known, other))
    # XLA takes a result of Triton's only with its own commit of Triton.
    assert there == replace(here, other_jaxlib=True, version=TRITON_COMMITS["0.12.0.1"])
    basis = predict_lock(texts, other).basis
    assert basis[Basis.OTHER_JAXLIB] == 1
    assert basis[Basis.NEAREST] == 0
    assert stated_error_bytes(0, basis) == WORKSPACE_BYTES
    path = tmp_path / "other.jsonl"
    path.write_text(other.lines)
    assert KnownResults.read(path).lines == other.lines
    assert all(row.other_jaxlib for row in KnownResults.read(path).results)
    assert known.for_jaxlib("0.13.0") is None
    later = KnownResults.read(TABLES / "h100_sxm-jax0.12.0.1.jsonl")
    assert later.for_jaxlib("0.11.2") is None


def test_results_of_the_installed_jaxlib_come_first(known: KnownResults) -> None:
    texts = tuned_instructions(MODULE)
    other = known.for_jaxlib("0.12.0.1")
    assert other is not None
    (near,) = predict_lock(texts, other).chosen.values()
    of_other = replace(near, fingerprint=FINGERPRINT, programs=("a", "b"))
    assert predict_lock(texts, other.with_results([of_other])).basis[Basis.OTHER_JAXLIB] == 1
    own = replace(of_other, config="backend: TRITON", programs=("a",), other_jaxlib=False)
    both = predict_lock(texts, other.with_results([own, of_other]))
    assert both.basis[Basis.KNOWN] == 1
    assert both.chosen[FINGERPRINT] == own


def test_a_lock_of_another_jaxlib_is_used_where_its_triton_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def jaxlib(found: str) -> None:
        monkeypatch.setattr("xlapipe.compile.known_locks.version", lambda name: found)
        _known_results.cache_clear()

    jaxlib("0.12.0.1")
    (results, device) = known_results("h200", "auto") or pytest.fail("nothing is known")
    own = {row.other_jaxlib for row in results.results if not row.other_device}
    assert own == {False, True}  # those of the installed jaxlib, and of an earlier one
    # The H100's table of 0.12.0.1 is of the same jaxlib.
    assert {row.other_jaxlib for row in results.results if row.other_device} == {True, False}
    assert device.name == "h200"
    jaxlib("0.13.0")
    assert known_results("h200", "auto") is None
    _known_results.cache_clear()


def test_large_products_are_cublaslts_and_small_ones_tritons(known: KnownResults) -> None:
    """cuBLASLt's workspace is 32 MiB, and Triton has none."""
    (large,) = predict_lock(tuned_instructions(MODULE), known).chosen.values()
    assert large.backend == "CUBLASLT_FISSION"
    assert "autotune_workspace_size: 33554432" in large.config
    small = MODULE.replace("4096", "128").replace("8192", "256").replace("2048", "64")
    texts = tuned_instructions(small)
    (chosen,) = predict_lock(texts, known).chosen.values()
    assert chosen.backend == "TRITON"


def fused(shapes: str, *lines: str) -> str:
    """The canonical text of a fusion whose last line is a product of `shapes`."""
    left, right, result = shapes.split()
    dot = f"ROOT tmp_9 = {result} dot({left} tmp_8, {right} tmp_7), lhs_contracting_dims={{1}}, "
    body = "\n".join(f"  {line}" for line in (*lines, dot + "rhs_contracting_dims={0}"))
    return f"{result} fusion({left}, {right}), kind=kCustom, calls=\n{{\n{body}\n}}"


MERGED = fused(
    "bf16[6272,384]{1,0} bf16[384,384]{1,0} bf16[6272,384]{1,0}",
    "tmp_8 = bf16[6272,384]{1,0} bitcast(bf16[32,196,6,64]{3,2,1,0} tmp_1)",
)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (MERGED, {"block_m": 4}),
        (MERGED.replace("196,6,64", "196,384,1"), {"block_m": 4}),
        (MERGED.replace("32,196,6,64", "49,128,384"), {}),
        (MERGED.replace("32,196,6,64", "6272,384"), {}),
        (MERGED.replace("32,196,6,64", "6272,2,192"), {"block_n": 64, "block_k": 64}),
        (
            fused(
                "f32[512,128]{1,0} f32[128,64]{1,0} f32[512,64]{1,0}",
                "tmp_8 = f32[512,128]{1,0} concatenate(f32[512,96]{1,0} tmp_1, f32[512,32]{1,0} "
                "tmp_2), dimensions={1}",
            ),
            {"block_k": 32},
        ),
        (MODULE, {}),
        ("", {}),
    ],
)
def test_blocks_are_limited_by_fused_reshapes_and_concatenations(
    text: str, limits: dict[str, int]
) -> None:
    assert block_limits(text) == limits


def test_blocks_that_xla_cannot_compile_are_not_predicted(known: KnownResults) -> None:
    text = fused(
        "bf16[640,64]{1,0} bf16[64,64]{1,0} bf16[640,64]{1,0}",
        "tmp_8 = bf16[640,64]{1,0} bitcast(bf16[32,20,4,16]{3,2,1,0} tmp_1)",
    )
    form = form_of(text)
    assert form is not None

    def block_m(limits: Mapping[str, int]) -> int:
        result, _ = nearest(form, known, limits)
        assert result is not None
        assert result.backend == "TRITON"
        return int(result.config.partition("block_m: ")[2].split()[0])

    free = block_m({})
    assert block_m({"block_m": free}) == free
    assert block_m({"block_m": free // 2}) < free
    without, agreement = nearest(form, known, block_limits(text))
    assert without is not None
    assert without.backend == "CUBLASLT_FISSION"
    assert agreement == 1


def test_a_tile_is_no_larger_than_the_product(known: KnownResults) -> None:
    (text,) = tuned_instructions(
        MODULE.replace("4096", "262144").replace("8192", "9").replace("2048", "2")
    )
    (chosen,) = predict_lock([text], known).chosen.values()
    tile = dict(re.findall(r"(block_k|num_stages): (\d+)", chosen.config))
    assert tile == {"block_k": "16", "num_stages": "1"}


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4096, 4096, 4096), "block_m: 128 block_n: 64 block_k: 128 num_stages: 3"),
        ((20, 4, 200), "block_m: 32 block_n: 8 block_k: 128 num_stages: 2"),
        ((262144, 9, 2), "block_m: 128 block_n: 16 block_k: 16 num_stages: 1"),
    ],
)
def test_a_tile_is_fitted_to_sizes(sizes: tuple[int, int, int], tile: str) -> None:
    """As in the tuner's logs, whose tiles all keep to it."""
    whole = "backend: TRITON block_m: 128 block_n: 64 block_k: 128 num_stages: 3"
    m, n, k = sizes
    text = (
        f"= f32[{m},{n}] dot(bf16[{m},{k}] tmp_0, bf16[{k},{n}] tmp_1), lhs_contracting_dims={{1}}"
    )
    assert fitted(whole, text) == f"backend: TRITON {tile}"
    assert fitted("backend: CUDNN", text) == "backend: CUDNN"


def test_stages_fit_in_shared_memory() -> None:
    """XLA refused the plan: 307,200 B were requested, and a block has 232,448 B."""
    parts = "".join(f"tmp_{i} = bf16[1152,6912]{{1,0}} parameter({i})\n" for i in range(5))
    shapes = ", ".join(f"bf16[1152,6912]{{1,0}} tmp_{i}" for i in range(5))
    text = f"""{parts}tmp_5 = bf16[1152,34560]{{1,0}} concatenate({shapes}), dimensions={{1}}
tmp_6 = bf16[32,1152]{{1,0}} parameter(5)
tmp_7 = bf16[34560,32]{{1,0}} dot(bf16[1152,34560]{{1,0}} tmp_5, bf16[32,1152]{{1,0}} tmp_6), \
lhs_contracting_dims={{0}}, rhs_contracting_dims={{1}}"""
    config = "backend: TRITON block_m: 128 block_n: 32 block_k: 64 num_stages: 3"
    assert fitted(config, text).endswith("num_stages: 2")
    assert fitted(config, text.replace("bf16[1152,", "s8[1152,")).endswith("stages: 3")


def test_a_fused_convert_is_part_of_the_form(known: KnownResults) -> None:
    small = MODULE.replace("4096", "128").replace("8192", "256").replace("2048", "64")
    (text,) = tuned_instructions(small)
    with_convert = text.replace("parameter(0)", "parameter(0)\n  tmp_5 = convert(tmp_0)", 1)
    assert form_of(with_convert) == replace(form_of(text), fused=1)
    assert predict_lock([with_convert], known).chosen


def test_a_product_is_unsure_where_those_near_it_disagree(known: KnownResults) -> None:
    (text,) = texts = tuned_instructions(MODULE)
    form = form_of(text)
    assert form is not None
    cublaslt, triton = (
        next(row for row in known.results if row.is_complete and row.backend == backend)
        for backend in ("CUBLASLT_FISSION", "TRITON")
    )
    at = [
        replace(row, fingerprint=f"{number:032x}", form=form, programs=("other",))
        for number, row in enumerate([cublaslt] * 7 + [triton] * 2)
    ]
    split = predict_lock(texts, replace(known, results=tuple(at)))
    assert split.basis[Basis.UNSURE] == 1
    assert split.chosen[FINGERPRINT].backend == "CUBLASLT_FISSION"
    agreeing = predict_lock(texts, replace(known, results=tuple(at[:8])))
    assert agreeing.basis[Basis.NEAREST] == 1
    assert predict_lock(texts, replace(known, results=())).basis[Basis.UNSURE] == 1


def test_a_workspace_is_part_of_the_error_where_a_result_is_not_known() -> None:
    known = {"known": 2, "nearest": 0, "unsure": 0, "default": 3}
    assert stated_error_bytes(1_000, known) == 20
    assert stated_error_bytes(1_000, {**known, "unsure": 1}) == WORKSPACE_BYTES + 20
    # A dump from before unsure results were counted.
    assert stated_error_bytes(1_000, {"nearest": 1}) == WORKSPACE_BYTES + 20
    assert stated_error_bytes(1_000, None) == WORKSPACE_BYTES + 200


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_table_is_read_as_it_was_written(path: Path) -> None:
    known = KnownResults.read(path)
    assert known.lines == path.read_text()
    assert f"{known.about['target']}-jax{known.jaxlib}".startswith(path.stem)
    assert all(row.backend and row.programs for row in known.results)


def test_results_of_one_program_alone_can_be_left_out(known: KnownResults) -> None:
    without = known.without("fsdp-mlp")
    assert 0 < len(without.results) < len(known.results)
    assert all("fsdp-mlp" not in row.programs for row in without.results)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"device":"a"}\n')
    with pytest.raises(TargetError, match="not a table of known results"):
        KnownResults.read(path)


@pytest.mark.parametrize("name", ["/etc/evil", "../../evil", "a/b", "n" * 300])
@pytest.mark.parametrize("field", ["workload", "target"])
def test_a_lock_names_no_path(users_folder: Path, tmp_path: Path, field: str, name: str) -> None:
    """Names in a lock were part of the path of its copy."""
    lock = tmp_path / "given.json"
    lock.write_bytes(replace(read_lock(LOCK), **{field: name}).to_bytes())
    before = set(tmp_path.rglob("*"))
    assert main(["device", "locks", str(lock)]) == 0
    (copy,) = users_folder.iterdir()
    assert set(tmp_path.rglob("*")) - before - {copy} == {tmp_path / "xlapipe", users_folder}


@pytest.mark.parametrize("field", ["workload", "gemm_policy", "target", "device", "results"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_lock_with_text_that_no_file_holds(
    users_folder: Path, tmp_path: Path, field: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "given.json"
    lock.write_text(json.dumps({**json.loads(LOCK.read_text()), field: text}, indent=1))
    assert main(["device", "locks", str(lock)]) == 2
    error = capsys.readouterr().err
    assert f"{field}: expected text without control characters, found " in error
    assert f"{lock}: line " in error
    assert "fix: " in error
    assert not users_folder.exists()


def test_results_of_a_lock_are_read_in_linear_time() -> None:
    """Three lazy patterns over all lines took minutes for 100 KB."""
    (entry,) = ENTRY.findall(read_lock(LOCK).results)[:1]
    device = 'device: "a" hlo_fingerprint: "b" codegen_version: "c" optimal_config { '
    for text in (device * 20_000, "optimal_backend_version " * 50_000, "entries {\n" * 50_000):
        start = time.process_time()
        _, results = results_of_lock(f"{entry}entries {{\n{text}\n}}\n", program="p")
        assert len(results) == 1
        assert time.process_time() - start < 5


@pytest.mark.parametrize("kind", ["dangling", "folder", "loop", "pipe", "damaged", "no results"])
def test_a_file_that_is_no_lock_stops_no_compile(
    users_folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device", "locks", str(LOCK)]) == 0
    sound = known_results("h200", "auto")
    bad = users_folder / "0bad.json"
    if kind == "folder":
        bad.mkdir()
    elif kind == "pipe":
        os.mkfifo(bad)
    elif kind in ("dangling", "loop"):
        bad.symlink_to(bad if kind == "loop" else users_folder / "nothing")
    else:
        lock = replace(read_lock(LOCK), results="")
        bad.write_bytes(lock.to_bytes() if kind == "no results" else b"{")
    _ = capsys.readouterr()
    assert known_results("h200", "auto") == sound
    assert main(["device", "locks"]) == 0
    output = capsys.readouterr()
    assert "of scan_gradient" in output.out
    (line,) = output.err.splitlines()
    assert line.startswith("xlapipe: skipped: ") and str(bad) in line
    assert line.endswith("fix: remove it from this folder")


def test_a_users_lock_is_used_for_its_device(
    users_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _ = known_results("h200", "auto")
    assert main(["device", "locks", str(LOCK), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["known"]
    (added,) = (row["from"] for row in known if row["from"] != "package")
    assert Path(added).parent == users_folder
    assert [lock for _, lock in added_locks()] == [read_lock(LOCK)]
    after, device = known_results("h200", "auto")
    _, results = results_of_lock(read_lock(LOCK).results, program="scan_gradient")
    keys = {row.fingerprint for row in results}
    assert keys <= set(after.by_fingerprint())
    added = {row.fingerprint for row in after.results if "scan_gradient" in row.programs}
    assert keys == added
    assert not any("scan_gradient" in row.programs for row in before.results)
    assert device.config_text == read_lock(LOCK).target_config
    assert main(["device", "locks"]) == 0
    assert "of scan_gradient" in capsys.readouterr().out


def test_a_file_that_is_not_a_lock_is_not_added(
    users_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock.json"
    path.write_text("{}")
    assert main(["device", "locks", str(path)]) == 2
    assert "expected schema_version" in capsys.readouterr().err
    assert not users_folder.exists()


def test_recorded_workspaces_of_attention_follow_the_rule() -> None:
    recorded = {
        (key, size)
        for device in ("h200", "h100")
        for program in json.loads((ROOT / f"tests/gpu/fidelity/{device}.json").read_text())[
            "programs"
        ].values()
        for key, size in program.get("workspaces", {}).items()
    }
    assert len(recorded) >= 7
    for key, size in recorded:
        target, *arrays = key.split()
        results = [(it.split("[")[0], json.loads(f"[{it[:-1].split('[')[1]}]")) for it in arrays]
        assert attention_workspace_bytes(target, results) == size
    assert attention_workspace_bytes("__cudnn$fmhaSoftmaxBackward", [("bf16", (1, 8, 64, 64))]) == (
        4 * 8 * 64 * 65 + 256
    )
    unequal = [("bf16", (1, 8, 64, 64)), ("bf16", (1, 2, 64, 64))]
    assert attention_workspace_bytes("__cudnn$fmhaSoftmaxBackward", unequal) is None
    assert attention_workspace_bytes("__cublas$gemm", unequal) is None


def test_most_recorded_programs_are_predicted() -> None:
    """Each program was predicted from others alone."""
    rows = record()
    errors = [abs(error(row, "predicted")) for row in rows.values()]
    assert sum(it <= 0.02 for it in errors) >= 0.9 * len(rows)
    large = [
        abs(error(row, "predicted"))
        for row in rows.values()
        if row["device"]["total_bytes"] >= 1_000_000_000
    ]
    assert len(large) >= 5
    assert max(large) <= 0.02
    assert right_share(rows) >= 0.89
    times = time_errors(rows, "predicted")
    assert sum(times) / len(times) <= 0.1


@pytest.mark.parametrize(("kind", "outside"), [("predicted", 0), ("untuned", 3)])
def test_recorded_programs_are_within_the_stated_error(kind: str, outside: int) -> None:
    beyond = [
        name
        for name, row in record().items()
        if abs(error_bytes(row, kind))
        > stated_error_bytes(row[kind]["temp_bytes"], row[kind].get("basis"))
    ]
    assert len(beyond) == outside, beyond


@pytest.mark.parametrize(("target", "policy"), [("a100_sxm_80", "auto"), ("h200", "cublas")])
def test_without_any_known_result_no_lock_is_predicted(target: str, policy: str) -> None:
    assert known_results(target, policy) is None
    (job,) = jobs_of([REFERENCE], CompileSettings(target=target, policies=(policy,)))
    assert job.known_results is None


def test_a_lock_is_predicted_where_results_are_known_unless_the_project_is_untuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(**options: Any) -> list[bool]:
        jobs = jobs_of([REFERENCE], CompileSettings(**options))
        return [job.known_results is not None for job in jobs]

    monkeypatch.chdir(tmp_path)
    is_known = version("jaxlib") in TRITON_COMMITS
    assert known() == [is_known]
    assert known(policies=("auto", "cublas")) == [is_known, False]
    assert known(target="b200") == known(target="v6e") == known(tuning=Tuned.NONE) == [False]
    assert known(options={"xla_gpu_autotune_level": 0}) == [False]
    (tmp_path / "pyproject.toml").write_text("[tool.xlapipe]\nuntuned = true\n")
    assert known() == [False]
    assert known(tuning=Tuned.AUTO) == [is_known]
    (folder := tmp_path / "steps").mkdir()
    monkeypatch.chdir(folder)
    assert known() == [False]
    (tmp_path / "pyproject.toml").write_text("[tool.xlapipe]\nuntuned = 'yes'\n")
    with pytest.raises(WorkloadError, match=r"tool.xlapipe.untuned: expected true or false, found"):
        known()
    assert known(project=Path("/")) == [is_known]


def test_two_compiles_that_are_compared_rest_on_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reference, common = "step:workload", CompileSettings()

    def known(*options: CompileSettings) -> list[bool]:
        jobs = jobs_to_compare(reference, options)
        assert len({job.target for job in jobs}) == 1
        return [job.known_results is not None for job in jobs]

    is_known = version("jaxlib") in TRITON_COMMITS
    other = replace(common, options={"xla_gpu_enable_latency_hiding_scheduler": True})
    assert known(common, other) == [is_known, is_known]
    assert known(common, replace(common, policies=("triton",))) == [False, False]
    assert known(common, replace(common, options={"xla_gpu_autotune_level": 0})) == [False, False]


def test_a_folder_of_locks_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "xlapipe").mkdir()
    assert list(added_locks()) == [] and take_skipped() == ()
    (tmp_path / "xlapipe/locks").touch()
    assert list(added_locks()) == []
    (skipped,) = take_skipped()
    assert "locks: Not a directory; fix: let this user read it" in skipped
