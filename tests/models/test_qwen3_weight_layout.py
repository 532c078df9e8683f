"""Shards of Qwen3's weights: their sizes, and errors for meshes that do not divide them."""

from dataclasses import replace
from math import prod

import pytest

from models.qwen3.argument_bytes import weight_bytes
from models.qwen3.config import CONFIGS, QWEN3_0_6B, QWEN3_32B
from models.qwen3.sharded import expectations
from models.qwen3.sharded.weight_layout import shard_elements, weight_layouts


@pytest.mark.parametrize("size", CONFIGS)
def test_the_layout_has_all_weights_of_the_model(size: str) -> None:
    config = CONFIGS[size]
    assert shard_elements(config, {}) * config.itemsize == weight_bytes(config)


def test_qwen3_32b_has_the_published_number_of_parameters() -> None:
    assert shard_elements(QWEN3_32B, {}) == 32_762_123_264


@pytest.mark.parametrize(("fsdp", "tensor"), [(8, 8), (64, 8), (16, 4), (2, 1)])
def test_matrices_are_split_over_all_devices_and_norms_are_replicated(
    fsdp: int, tensor: int
) -> None:
    norms = sum(
        prod(layout.shape)
        for layout in weight_layouts(QWEN3_32B)
        if set(layout.split_over) == {None}
    )
    whole = shard_elements(QWEN3_32B, {})
    shard = shard_elements(QWEN3_32B, {"fsdp": fsdp, "tensor": tensor})
    assert shard == norms + (whole - norms) // (fsdp * tensor)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (
            {"fsdp": 1, "tensor": 16},
            r"layers\.qkv: dimension 2 \(K = 8\) is not a multiple of 16, .* axis 'tensor'",
        ),
        (
            {"fsdp": 3, "tensor": 1},
            r"embed: dimension 0 \(D = 5,120\) is not a multiple of 3, .* axis 'fsdp'",
        ),
    ],
)
def test_a_mesh_that_does_not_divide_a_weight_is_an_error_that_names_leaf_and_axis(
    mesh: dict[str, int], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        shard_elements(QWEN3_32B, mesh)


@pytest.mark.parametrize(
    ("batch", "seq", "expected"),
    [
        (6, 64, "batch=6 is not a multiple of 4, the size of mesh axis 'fsdp'"),
        (8, 63, "seq=63 is not a multiple of 2, the size of mesh axis 'tensor'"),
    ],
)
def test_a_mesh_that_does_not_divide_the_batch_is_an_error(
    batch: int, seq: int, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        expectations.train(QWEN3_0_6B, {"fsdp": 4, "tensor": 2}, batch=batch, seq=seq)


def test_a_stack_with_the_shape_of_a_single_matrix_is_not_forbidden() -> None:
    """For two layers, the stack of `down` has the shape of one layer's `gate_up`."""
    mesh = {"fsdp": 2, "tensor": 1}

    def forbidden(layers: int) -> set[tuple[int, ...]]:
        config = replace(QWEN3_0_6B, num_hidden_layers=layers)
        expected = expectations.train(config, mesh, batch=2, seq=64)
        return {
            tuple(sorted(expectation.dims))
            for expectation in expected
            if hasattr(expectation, "dims")
        }

    assert (3, 1024, 3072) in forbidden(3)
    assert (2, 1024, 3072) not in forbidden(2)
    assert (2, 2, 1024, 3072) in forbidden(2)
