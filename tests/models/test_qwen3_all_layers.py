"""The kernel of all layers for any size: its division of work, and its plan without a GPU."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from models.qwen3.config import CONFIGS, QWEN3_0_6B, Qwen3Config
from models.qwen3.kernels.all_layers.sizes import (
    BLOCKS,
    COLUMNS,
    ROWS,
    STEP,
    Sizes,
    persistent_fits,
)
from models.qwen3.kernels.tiling import jax_for_hopper
from models.qwen3.steps import implementation_for
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.expect import check_all
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

LENGTH = 2048
HOPPER = pytest.mark.skipif(not jax_for_hopper(), reason="this jax has no kernels for Hopper")


def sizes_of(config: Qwen3Config) -> Sizes:
    return Sizes(config, LENGTH)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_blocks_have_every_row_of_every_matrix(config: Qwen3Config) -> None:
    sizes = sizes_of(config)
    shapes = {
        sizes.qkv: (config.qkv_size, config.hidden_size),
        sizes.out: (config.hidden_size, config.q_size),
        sizes.gate_up: (2 * config.intermediate_size, config.hidden_size),
        sizes.down: (config.hidden_size, config.intermediate_size),
    }
    for matrix, shape in shapes.items():
        assert (BLOCKS * matrix.rows, matrix.columns) == shape
        assert matrix.rows % ROWS == 0
        assert (matrix.segments - 1) * COLUMNS + matrix.last_columns == matrix.columns
        assert matrix.last_columns % STEP == 0
        assert matrix.chunks * ROWS * COLUMNS >= matrix.rows * matrix.columns
    # Gate's rows end with a chunk, so that no chunk has rows of both.
    assert sizes.activations % ROWS == 0
    assert 3 * (sizes.activation_packets - 1) < sizes.activations <= 3 * sizes.activation_packets


@pytest.mark.parametrize(
    ("changes", "arguments", "fits"),
    [
        ({}, {}, jax_for_hopper()),
        ({"num_hidden_layers": 3}, {}, jax_for_hopper()),
        ({"hidden_size": 1280}, {}, False),
        ({"num_key_value_heads": 4}, {}, False),
        ({"dtype": "float32"}, {}, False),
        ({"num_hidden_layers": 29}, {}, jax_for_hopper()),
        ({}, {"cache_length": 48}, False),
        ({}, {"compute_capability": "8.0"}, False),
        ({}, {"compute_capability": None}, False),
        ({}, {"multiprocessors": 114}, False),
        ({}, {"multiprocessors": None}, False),
    ],
)
def test_fits(changes: dict[str, Any], arguments: dict[str, Any], fits: bool) -> None:
    values = {"cache_length": 2048, "compute_capability": "9.0", "multiprocessors": 132}
    config = replace(QWEN3_0_6B, **changes)
    assert persistent_fits(config, **(values | arguments)) == fits


@pytest.mark.parametrize("size", ["1.7b", "4b", "8b", "14b", "32b"])
def test_models_that_were_run_have_the_kernel_on_hopper(size: str) -> None:
    chosen = implementation_for(
        CONFIGS[size],
        platform="gpu",
        batch=1,
        length=1,
        cache_length=LENGTH,
        compute_capability="9.0",
        multiprocessors=132,
    )
    assert (chosen == "persistent") == (jax_for_hopper() and size != "32b")


@pytest.mark.slow
@HOPPER
def test_a_layer_of_4b_compiles_and_meets_its_expectations(tmp_path: Path) -> None:
    arguments = f"layers=1,config={asdict(CONFIGS['4b'])!r},implementation='persistent'"
    reference = find_workload(f"qwen3-generate({arguments})")
    (job,) = jobs_of([reference], CompileSettings(target="h200", policies=("cublas",)))
    dump = make_dump(job, tmp_path).dump
    findings = check_all(dump.expectations, dump)
    assert findings
    assert [finding for finding in findings if not finding.holds] == []
