"""Predicted tuning: XLA's fingerprints, nearest instructions, tables, and the user's locks."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from xlapipe.errors import TargetError
from xlapipe.time.predicted_locks.attention import attention_workspace_bytes
from xlapipe.time.predicted_locks.basis import Basis
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, form_of
from xlapipe.time.predicted_locks.instructions import tuned_instructions
from xlapipe.time.predicted_locks.known_results import (
    TABLES,
    TRITON_COMMITS,
    KnownResults,
)
from xlapipe.time.predicted_locks.plan_error import WORKSPACE_BYTES, stated_error_bytes
from xlapipe.time.predicted_locks.predict import block_limits, fitted, nearest, predict_lock

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
    assert list(unknown.chosen) == [FINGERPRINT]
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
    _, agreement = nearest(form, replace(known, results=tuple(at)))
    assert split.other_choice == pytest.approx(1 - agreement, abs=1e-3)
    assert 0.2 < split.other_choice < 0.4
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
