"""The kernels of each size of Qwen3: the record of a GPU, and what is compiled without one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.qwen3.config import CONFIGS
from models.qwen3.kernels.product_forms import (
    BATCH_FORMS,
    FORMS,
    MOST_QKV_SPLITS,
    batch_form_of,
    measured,
    shapes_of,
)
from models.qwen3.kernels.tiling import jax_for_hopper
from models.qwen3.steps import implementation_for
from models.qwen3.workloads import qwen3_generate
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.registry import find_workload
from xlapipe.report.xla_subject import XlaSubject

pytestmark = pytest.mark.jax

ROOT = Path(__file__).parents[2]
SIZES = ("1.7b", "4b", "8b", "14b")


def _record(name: str) -> Any:
    return json.loads((ROOT / "tests" / "gpu" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("size", SIZES)
def test_the_table_has_the_fastest_forms_of_the_record(size: str) -> None:
    timed = _record("qwen3_matvecs.json")["sizes"][size]
    for matrix, shape in shapes_of(CONFIGS[size]).items():
        means = {
            form: sum(times) / len(times) for form, times in timed["microseconds"][matrix].items()
        }
        assert means[timed["fastest"][matrix]] == min(means.values()), matrix
        assert ",".join(map(str, FORMS[shape][:3])) == timed["fastest"][matrix], matrix


@pytest.mark.parametrize("size", ["4b", "8b"])
def test_the_table_for_several_sequences_has_the_fastest_forms_of_the_record(size: str) -> None:
    timed = _record("qwen3_products.json")["cases"][f"batch:{size}"]["microseconds"]
    shapes = shapes_of(CONFIGS[size])
    assert len(timed) == sum(shape in BATCH_FORMS for shape in shapes.values())
    for matrix, times in timed.items():
        means = {
            form: sum(values) / len(values)
            for form, values in times.items()
            if matrix != "qkv" or int(form.rpartition(",")[2]) <= MOST_QKV_SPLITS
        }
        form = batch_form_of(shapes[matrix])
        assert ",".join(map(str, form)) == min(means, key=means.__getitem__), matrix


@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_are_the_default_for_one_sequence(size: str) -> None:
    config = CONFIGS[size]
    assert measured(config)
    chosen = implementation_for(config, platform="gpu", batch=1, length=1, cache_length=2048)
    assert chosen == "triton"
    on_hopper = implementation_for(
        config,
        platform="gpu",
        batch=1,
        length=1,
        cache_length=2048,
        compute_capability="9.0",
        multiprocessors=132,
    )
    assert (on_hopper == "persistent") == jax_for_hopper()


def test_a_model_without_measured_forms_decodes_by_xla() -> None:
    config = replace(CONFIGS["4b"], intermediate_size=9216)
    assert not measured(config)
    chosen = implementation_for(config, platform="gpu", batch=1, length=1, cache_length=2048)
    assert chosen == "xla"


def workload() -> Any:
    """Two layers of 4B."""
    return qwen3_generate(2, config=CONFIGS["4b"])


@pytest.mark.slow
def test_a_step_of_4b_compiles_for_an_h200_and_its_floor_is_that_of_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attention is stated to read a chunk of an empty cache, not all of its operand."""
    monkeypatch.chdir(Path(__file__).parent)
    (job,) = jobs_of([find_workload("test_qwen3_sizes:workload")], CompileSettings(target="h200"))
    opened = XlaSubject(compile_dump(job, None).dump)
    assert opened.step_cost is not None
    config = CONFIGS["4b"]
    attention, *_ = (k for k in opened.step_cost.kernels if k.kind == "decode_attention")
    assert attention.stated
    chunk = 2 * 64 * config.kv_size * config.itemsize
    assert chunk < attention.touched_bytes / attention.launches < 1.5 * chunk
    swiglu, *_ = (k for k in opened.step_cost.kernels if k.kind == "norm_swiglu")
    outputs, inputs = shapes_of(config)["gate_up"]
    assert 0 <= swiglu.touched_bytes / swiglu.launches - 2 * outputs * inputs < 100_000
