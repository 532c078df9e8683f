"""Closed forms of TPU bytes: padding, and the temporary memory of Qwen3-32B's training step."""

import pytest

from models.qwen3.config import CONFIGS
from models.qwen3.sharded.expectations import train
from models.qwen3.sharded.weight_layout import FSDP, TENSOR, weight_layouts
from models.tpu_tiles import tpu_bytes, tpu_padding_bytes
from xlapipe.expect import ParameterBytes, TempAtMost

CONFIG = CONFIGS["32b"]
SEQ = 2048
# Batch, argument bytes and temporary bytes by the size of the mesh axis `fsdp`, on v5p with libtpu
# 0.0.48.1 (docs/tpu.md).
COMPILED = {
    1: (8, 49_150_366_208, 26_492_272_672),
    8: (8, 6_150_903_296, 3_531_489_312),
    32: (32, 1_544_132_096, 1_402_126_368),
}


@pytest.mark.parametrize(
    ("dims", "itemsize", "expected"),
    [
        ((), 4, 512),
        ((7,), 4, 512),
        ((1000,), 2, 2048),
        ((1025,), 4, 8192),
        ((17, 1024), 2, 24 * 1024 * 2),
        ((1, 1024), 4, 1024 * 4),
        ((1, 1024), 2, 2 * 1024 * 2),
        ((3, 128), 4, 4 * 128 * 4),
        # The order of dimensions with the least padding.
        ((5120, 18992), 4, 5120 * 18992 * 4),
        ((160, 18992), 4, 160 * 19072 * 4),
        ((64, 5120, 1, 10, 128), 4, 64 * 5120 * 10 * 128 * 4),
    ],
)
def test_an_array_takes_whole_tiles(dims: tuple[int, ...], itemsize: int, expected: int) -> None:
    assert tpu_bytes(dims, itemsize) == expected


def test_padding_is_what_holds_no_elements() -> None:
    # 130 rows of 17 take 136 × 128 elements, 17 rows of 130 take 24 × 256.
    assert tpu_padding_bytes((17, 130), 4) == (24 * 256 - 17 * 130) * 4
    assert tpu_padding_bytes((256, 128), 4) == 0


def limits(fsdp: int) -> tuple[int, int]:
    """The expected argument bytes, and the bound of temporary memory."""
    batch, _, _ = COMPILED[fsdp]
    expectations = train(CONFIG, {FSDP: fsdp, TENSOR: 8}, batch=batch, seq=SEQ)
    (arguments,) = (e for e in expectations if isinstance(e, ParameterBytes) and e.padded)
    (temp,) = (e for e in expectations if isinstance(e, TempAtMost) and e.under == "tpu")
    return arguments.total_bytes, temp.limit_bytes


@pytest.mark.parametrize("fsdp", COMPILED)
def test_the_bound_leaves_little(fsdp: int) -> None:
    _, argument_bytes, temp_bytes = COMPILED[fsdp]
    total_bytes, limit_bytes = limits(fsdp)
    assert total_bytes == argument_bytes
    assert temp_bytes <= limit_bytes <= 1.07 * temp_bytes


@pytest.mark.parametrize("fsdp", COMPILED)
def test_broken_programs_exceed_the_bound(fsdp: int) -> None:
    """A stack is copied again or gathered at once, or a value of every layer is kept."""
    batch, _, temp_bytes = COMPILED[fsdp]
    _, limit_bytes = limits(fsdp)
    (gate_up,) = (row for row in weight_layouts(CONFIG) if row.path == "layers.gate_up")
    copied = tpu_bytes(gate_up.shard_shape({FSDP: fsdp, TENSOR: 8}), CONFIG.itemsize)
    gathered = tpu_bytes(gate_up.shard_shape({TENSOR: 8}), CONFIG.itemsize)
    hidden = (CONFIG.num_hidden_layers - 1, batch // fsdp, SEQ, CONFIG.intermediate_size // 8)
    for more_bytes in (copied, gathered, tpu_bytes(hidden, CONFIG.itemsize)):
        assert temp_bytes + more_bytes > limit_bytes
