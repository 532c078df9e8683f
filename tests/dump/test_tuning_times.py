"""What XLA's tuner measured: read from its log, kept in a dump, and taken as times of kernels."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import DATA
from xlapipe.dump.dump import open_dump
from xlapipe.dump.manifest import with_digests
from xlapipe.dump.time_record import TIME_RECORD
from xlapipe.dump.tuning_times import (
    TUNING_TIMES,
    TunedInstruction,
    TuningCandidate,
    read_tuning_times,
    tuning_times,
    tuning_times_to_bytes,
)
from xlapipe.errors import DumpError
from xlapipe.files.contents import read_packed
from xlapipe.report.subjects import open_subject
from xlapipe.report.timed_kernels import timed_kernels
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.study import study_of

# Of jax 0.11.2 on an H200: two products, a convolution, and a row times a matrix.
LOGS = DATA / "tuning" / "tuning_logs.textproto.gz"
GOLDEN = Path(__file__).parents[2] / f"hlo_dumps/qwen3-step/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
TRITON = """
        triton {
          block_m: 128
          block_n: 256
          block_k: 64
          num_stages: 4
          num_warps: 8
          num_ctas: 1
          is_tma_allowed: true
          group_size: 1
        }
"""
RESULTS = """entries {
  key {
    target {
      hlo_fingerprint: "b552a28f6a31c31e5a45f55b350e0458"
    }
  }
  value {
    optimal_config {
      backend: TRITON
      backend_config {CONFIG      }
    }
  }
}
"""


@pytest.fixture(scope="module")
def tuned() -> tuple[TunedInstruction, ...]:
    return tuning_times(read_packed(LOGS).decode(), RESULTS.replace("CONFIG", TRITON))


def test_every_candidate_that_ran_has_its_time(tuned: tuple[TunedInstruction, ...]) -> None:
    names = [item.name for item in tuned]
    assert names[0] == "gemm_fusion_dot_general.3"
    assert "cudnn-conv.1" in names
    assert [item.shape for item in tuned][:2] == ["bf16[4096,2048]{1,0}", "bf16[4096,8192]{1,0}"]
    assert sum(len(item.candidates) for item in tuned) == 119
    assert min(item.seconds for item in tuned[0].candidates) == pytest.approx(168.768e-6)
    assert max(item.scratch_bytes for item in tuned[0].candidates) == 33_554_432


def test_the_lock_states_which_one_was_chosen(tuned: tuple[TunedInstruction, ...]) -> None:
    assert sum(item.chosen for item in tuned[0].candidates) == 1
    assert tuned[0].seconds == pytest.approx(169.28e-6)
    assert all(item.seconds is None for item in tuned[1:])


def test_the_file_is_read_as_it_was_written(
    tuned: tuple[TunedInstruction, ...], tmp_path: Path
) -> None:
    assert read_tuning_times(tmp_path) == ()
    (tmp_path / TUNING_TIMES).write_bytes(tuning_times_to_bytes(tuned))
    assert read_tuning_times(tmp_path) == tuned


def test_the_manifest_is_that_of_a_compile_with_the_lock() -> None:
    manifest = open_subject(GOLDEN).dump.manifest  # type: ignore[union-attr]
    files = {name: name.encode() for name in manifest.files}
    tuned_now = with_digests(manifest, {**files, TUNING_TIMES: b"{}"})
    assert tuned_now == with_digests(manifest, files)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"schema_version": 2, "instructions": []}',
        '{"schema_version": 1}',
        '{"schema_version": 1, "instructions": [{"name": 1}]}',
        json.dumps(
            {
                "schema_version": 1,
                "instructions": [
                    {
                        "name": "a",
                        "shape": "f32[]",
                        "hlo_fingerprint": "b",
                        "candidates": [
                            {"config": {}, "seconds": -1.0, "scratch_bytes": 0, "chosen": True}
                        ],
                    }
                ],
            }
        ),
    ],
)
def test_damaged_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / TUNING_TIMES).write_text(content, encoding="utf-8")
    with pytest.raises(DumpError, match=r"tuning_times\.json: .*; fix: "):
        read_tuning_times(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seconds", "true", "a number, found True"),
        ("seconds", "1e9", "a number <= 3600"),
        ("seconds", '"1"', "a number, found '1'"),
        ("chosen", '"no"', "true or false, found 'no'"),
        ("scratch_bytes", "-1", "an integer >= 0"),
        ("config", "[]", r"an object, found \[\]"),
    ],
)
def test_a_field_of_another_form(name: str, value: str, expected: str, tmp_path: Path) -> None:
    """`true` was 1 s, and the text "no" true."""
    sound = {"config": "{}", "seconds": "1.0", "scratch_bytes": "0", "chosen": "true"}
    pairs = ", ".join(f'"{key}": {text}' for key, text in {**sound, name: value}.items())
    (tmp_path / TUNING_TIMES).write_text(
        '{"schema_version": 1, "instructions": [\n{"name": "a", "shape": "f32[]", '
        f'"hlo_fingerprint": "b", "candidates": [\n{{{pairs}}}]}}]}}'
    )
    field = rf"line 3: instructions\[0\]\.candidates\[0\]\.{name}"
    with pytest.raises(DumpError, match=rf"{field}: expected {expected}.*; fix: "):
        read_tuning_times(tmp_path)


def test_times_of_the_tuner_predict_kernels_without_a_record(tmp_path: Path) -> None:
    folder = tmp_path / GOLDEN.name
    shutil.copytree(GOLDEN, folder)
    opened = open_subject(folder)
    assert opened.plan.module is not None
    assert opened.time_record is not None
    longest = max(opened.time_record.seconds_of.items(), key=lambda item: item[1])[0]
    shape = opened.plan.instructions[longest].shape.text
    kept = [
        TunedInstruction(name, shape, "0", (TuningCandidate({}, seconds, 0, chosen=True),))
        for name, seconds in ((longest, 123.4e-6), ("not_in_the_plan", 1e-3))
    ]
    (folder / TUNING_TIMES).write_bytes(tuning_times_to_bytes(tuple(kept)))

    def predicted() -> dict[str, tuple[float, str]]:
        times = timed_kernels(folder, "NVIDIA H100 80GB HBM3")
        prediction = study_of(open_dump(folder), PredictionSettings(timed=times)).prediction
        assert prediction is not None
        return {item.name: (item.seconds, item.launch.basis) for item in prediction.kernels}

    assert predicted()[longest][1] == "timed"
    assert predicted()[longest][0] != pytest.approx(121.2e-6)  # the record comes first
    (folder / TIME_RECORD).unlink()
    seconds, basis = predicted()[longest]
    assert (seconds, basis) == (pytest.approx(121.2e-6), "timed")
    assert sum(basis == "timed" for _, basis in predicted().values()) < 4
