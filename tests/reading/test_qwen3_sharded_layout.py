"""Shards of Qwen3's weights: closed forms, and meshes that do not divide them."""

from dataclasses import replace

import pytest

from models.qwen3.argument_bytes import weight_bytes
from models.qwen3.config import CONFIGS, QWEN3_0_6B, QWEN3_32B
from models.qwen3.sharded import expectations
from models.qwen3.sharded.layout import shard_elements, weight_layouts


@pytest.mark.parametrize("size", CONFIGS)
def test_the_layout_holds_every_weight_of_the_model(size: str) -> None:
    config = CONFIGS[size]
    assert shard_elements(config, {}) * config.itemsize == weight_bytes(config)


def test_qwen3_32b_has_as_many_parameters_as_it_is_said_to() -> None:
    assert shard_elements(QWEN3_32B, {}) == 32_762_123_264


@pytest.mark.parametrize(("fsdp", "tensor"), [(8, 8), (64, 8), (16, 4), (2, 1)])
def test_matrices_are_cut_by_all_devices_and_norms_by_none(fsdp: int, tensor: int) -> None:
    norms = sum(
        each.shape[0] * (each.shape[1] if len(each.shape) == 2 else 1)
        for each in weight_layouts(QWEN3_32B)
        if set(each.cut) == {None}
    )
    whole = shard_elements(QWEN3_32B, {})
    found = shard_elements(QWEN3_32B, {"fsdp": fsdp, "tensor": tensor})
    assert found == norms + (whole - norms) // (fsdp * tensor)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ({"fsdp": 1, "tensor": 16}, r"layers\.qkv: dimension 2 \(K = 8\) .* 16 parts .*'tensor'"),
        ({"fsdp": 3, "tensor": 1}, r"embed: dimension 0 \(D = 5,120\) .* 3 parts .*'fsdp'"),
    ],
)
def test_a_mesh_that_does_not_divide_names_leaf_and_axis(
    mesh: dict[str, int], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        shard_elements(QWEN3_32B, mesh)


@pytest.mark.parametrize(
    ("batch", "seq", "expected"),
    [(6, 64, "batch=6 .* 4 parts of mesh axis 'fsdp'"), (8, 63, "seq=63 .* 2 parts .*'tensor'")],
)
def test_sequences_that_do_not_divide_are_refused(batch: int, seq: int, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        expectations.train(QWEN3_0_6B, {"fsdp": 4, "tensor": 2}, batch=batch, seq=seq)


def test_a_stack_that_looks_like_one_layer_is_not_forbidden() -> None:
    """Of two layers, all of `down` have the shape of one `gate_up`."""
    mesh = {"fsdp": 2, "tensor": 1}

    def forbidden(layers: int) -> set[tuple[int, ...]]:
        config = replace(QWEN3_0_6B, num_hidden_layers=layers)
        found = expectations.train(config, mesh, batch=2, seq=64)
        return {tuple(sorted(each.dims)) for each in found if hasattr(each, "dims")}

    assert (3, 1024, 3072) in forbidden(3)
    assert (2, 1024, 3072) not in forbidden(2)
    assert (2, 2, 1024, 3072) in forbidden(2)
