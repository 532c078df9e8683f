"""The kernel of all layers for any size: its division of work, and its plan without a GPU."""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from models.qwen3.config import CONFIGS, QWEN3_0_6B, Qwen3Config
from models.qwen3.kernels.all_layers.by_fma.products import float_offset, float_place
from models.qwen3.kernels.all_layers.sizes import (
    BLOCKS,
    COLUMNS,
    PACKET,
    ROWS,
    STEP,
    WARPS,
    Sizes,
    persistent_fits,
)
from models.qwen3.kernels.tiling import jax_for_hopper
from models.qwen3.steps import implementation_for
from tests.models.integers import Integers
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


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_ring_has_a_chunk_for_each_warp(config: Qwen3Config) -> None:
    """Parities of a slot tell two rounds apart: no warp may be more than a round ahead."""
    assert sizes_of(config).slots >= WARPS


@pytest.mark.parametrize("size", ["1.7b", "4b", "8b", "14b"])
def test_packets_are_a_small_part_of_a_layer(size: str) -> None:
    config = CONFIGS[size]
    layer = 2 * config.hidden_size * (config.qkv_size + config.q_size)
    layer += 6 * config.hidden_size * config.intermediate_size
    assert sizes_of(config).exchange_bytes < layer / 100
    assert sizes_of(config).exchange_bytes % PACKET == 0


def test_lanes_read_the_columns_that_were_stored_for_them() -> None:
    """A lane of a step has 8 neighbouring columns; each 4 bytes of the vector have one column."""
    places = [float_place(Integers(), column) for column in range(2 * STEP)]
    assert Counter(places) == Counter(range(0, 8 * STEP, 4))
    for step in range(2):
        for lane in range(32):
            for half in range(2):
                first = float_offset(step, half) + 16 * lane
                columns = [STEP * step + 8 * lane + 4 * half + i for i in range(4)]
                assert [places[column] for column in columns] == [first + 4 * i for i in range(4)]


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


@HOPPER
@pytest.mark.parametrize(
    "size",
    ["4b", *(pytest.param(size, marks=pytest.mark.slow) for size in ("1.7b", "8b", "14b", "32b"))],
)
def test_the_step_compiles_and_meets_its_expectations(size: str, tmp_path: Path) -> None:
    arguments = f"layers=1,config={asdict(CONFIGS[size])!r},implementation='persistent'"
    reference = find_workload(f"qwen3-generate({arguments})")
    (job,) = jobs_of([reference], CompileSettings(target="h200", policies=("cublas",)))
    dump = make_dump(job, tmp_path).dump
    findings = check_all(dump.expectations, dump)
    assert findings
    assert [finding for finding in findings if not finding.holds] == []
