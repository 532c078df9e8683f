"""Expectations' closed forms match the workloads' arguments and reference dump 003."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import pytest

from models.qwen3 import expectations, workloads
from models.qwen3.argument_bytes import ReferenceSizes
from models.qwen3.checkpoint.random_checkpoint import huggingface_config
from models.qwen3.config import QWEN3_0_6B, Qwen3Config
from xlapipe import Workload
from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.expect import (
    AllocationOf,
    AllocationsAre,
    KernelCount,
    LoopOfTrips,
    MatmulsAccounted,
    NoCopyAbove,
    NoCopyInLoopAbove,
    NoValueOfShape,
    ParameterBytes,
    TrafficAtMost,
    check_all,
)
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

# Allocations 0 to 20 of reference dump 003: bytes, and the parameter number, or None for an output.
DUMP_003 = (
    (311_164_928, 5),
    (277_413_888, 16),
    (138_706_944, None),
    (138_706_944, None),
    (12_582_912, 8),
    (12_582_912, 12),
    (10_485_760, 15),
    (8_388_608, 2),
    (6_291_456, 7),
    (6_291_456, 11),
    (4_194_304, 10),
    (4_194_304, 6),
    (262_144, None),
    (262_144, None),
    (2_048, 9),
    (2_048, 13),
    (2_048, 3),
    (512, 4),
    (512, 14),
    (256, 0),
    (32, None),
)
MODULE = "models.qwen3.workloads"
SMALL = replace(QWEN3_0_6B, vocab_size=640, hidden_size=64, tie_word_embeddings=False)

GENERATION: dict[str, Callable[[], Workload]] = {
    "generate": lambda: workloads.qwen3_generate(implementation="xla"),
    "generate-sampled": lambda: workloads.qwen3_generate(
        3, 4, 96, 5, None, SMALL, implementation="xla"
    ),
    "generate-sampled64": lambda: workloads.qwen3_generate(
        2, 3, 96, 5, 64, SMALL, implementation="xla"
    ),
    "prompts": lambda: workloads.qwen3_prompts(implementation="xla"),
    "prompts-sampled64": lambda: workloads.qwen3_prompts(
        2, 3, 16, 96, 64, SMALL, implementation="xla"
    ),
}
WORKLOADS = {
    "step": workloads.qwen3_step,
    "step-donated": workloads.qwen3_step_donated,
    "prefill": workloads.qwen3_prefill,
    "prefill-batch": lambda: workloads.qwen3_prefill(3, 2, 256, 512, SMALL),
    "decode": workloads.qwen3_decode,
    "decode-batch": lambda: workloads.qwen3_decode(5, 4, 96, SMALL),
    **GENERATION,
}


def bytes_of(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def of_type(workload: Workload, kind: type[Any]) -> list[Any]:
    return [expectation for expectation in workload.expectations if isinstance(expectation, kind)]


def only(workload: Workload, kind: type[Any]) -> Any:
    """The expectation of a GPU; those of a TPU count the padding of its tiles."""
    (expectation,) = (it for it in of_type(workload, kind) if it.under != "tpu")
    return expectation


def test_reference_step_expects_the_allocations_of_reference_dump_003() -> None:
    expected = only(workloads.qwen3_step(), AllocationsAre)
    assert expected.first == 0
    assert expected.allocations == tuple(
        (size, ("maybe-live-out" if number is None else "parameter",)) for size, number in DUMP_003
    )


def test_reference_step_has_the_parameters_of_reference_dump_003() -> None:
    arguments = workloads.qwen3_step().args
    sizes = {number: size for size, number in DUMP_003 if number is not None} | {1: 4}
    assert [bytes_of(argument) for argument in arguments] == [sizes[n] for n in range(17)]
    assert arguments[16].shape == (2, 4233, 16, 8, 128)
    assert arguments[1].shape == ()


@pytest.mark.parametrize("name", WORKLOADS)
def test_parameter_bytes_equal_those_of_the_arguments(name: str) -> None:
    workload = WORKLOADS[name]()
    assert only(workload, ParameterBytes).total_bytes == bytes_of(workload.args)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in GENERATION])
def test_expected_sizes_equal_those_of_the_outputs(name: str) -> None:
    workload = WORKLOADS[name]()
    outputs = jax.eval_shape(workload.fn, *workload.args)
    leaves = {
        f"out{jax.tree_util.keystr(path)}": bytes_of(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(outputs)
    }
    expected = {
        expectation.name: expectation.size_bytes
        for expectation in of_type(workload, AllocationOf)
        if expectation.name.startswith("out")
    }
    assert expected
    assert {path: leaves[path] for path in expected} == expected


@pytest.mark.parametrize("name", ["prefill", "prefill-batch", "decode", "decode-batch"])
def test_the_output_cache_has_the_shapes_and_dtypes_of_the_argument(name: str) -> None:
    workload = WORKLOADS[name]()
    assert workload.donated == (1,)
    outputs = jax.eval_shape(workload.fn, *workload.args)
    assert set(outputs) == {"logits", "cache"}
    described = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), cache)
        for cache in (workload.args[1], outputs["cache"])
    ]
    assert described[0] == described[1]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_matmul_is_in_one_expected_scope(name: str) -> None:
    workload = WORKLOADS[name]()
    text = jax.jit(workload.fn).lower(*workload.args).as_text(debug_info=True)
    dots = text.count("stablehlo.dot_general")
    for applicable in (("cuda", "cublas"), ("cuda", "triton"), ("cuda", "auto"), ("tpu",)):
        (accounted,) = [
            expectation
            for expectation in of_type(workload, MatmulsAccounted)
            if expectation.under in (None, *applicable)
        ]
        assert dots == sum(matmul.count for matmul in accounted.matmuls)
        scopes = [matmul.scope for matmul in accounted.matmuls]
        assert [scope for scope in scopes if f"{scope}/" not in text] == []


def test_the_shape_of_the_expected_logits_is_not_forbidden() -> None:
    """For two prompts of two tokens, the logits are [2, V]."""
    expected = expectations.prefill(QWEN3_0_6B, batch=2, length=2, cache_length=8)
    dims = [expectation.dims for expectation in expected if hasattr(expectation, "dims")]
    assert dims == [(2, 2, 151936), (4, 151936)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 15}, "multiple of"),
        ({"head_dim": 127}, "even"),
        ({"hidden_size": 0}, "hidden_size must be at least 1"),
        ({"dtype": "int8"}, "dtype must be one of"),
    ],
)
def test_invalid_configs_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(QWEN3_0_6B, **change)


def test_expectations_and_config_need_no_jax() -> None:
    code = (
        "import sys; import models.qwen3.expectations, models.qwen3.argument_bytes;"
        "print([name for name in ('jax', 'flax', 'numpy') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_reference_sizes_follow_the_config() -> None:
    """The formulas hold for other configs than that of the 0.6B model."""
    config: Qwen3Config = replace(QWEN3_0_6B, head_dim=64, num_key_value_heads=4)
    sizes = ReferenceSizes(config=config, tokens=3, blocks=5, block_size=2, positions=7)
    (k, v, keys, values) = (3 * 4 * 64 * 2,) * 2 + (5 * 2 * 4 * 64 * 2,) * 2
    assert (sizes.new_rows_bytes, sizes.half_cache_bytes) == (k, keys)
    assert (v, values) == (k, keys)
    assert sizes.parameter_bytes[16] == 2 * keys
    assert sizes.parameter_bytes[15] == 7 * 64 * 2


@pytest.mark.parametrize("name", GENERATION)
def test_outputs_have_the_cache_and_state_of_the_arguments(name: str) -> None:
    workload = WORKLOADS[name]()
    assert workload.donated == (1, 2)
    outputs = jax.eval_shape(workload.fn, *workload.args)

    def described(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), tree)

    assert described(outputs["cache"]) == described(workload.args[1])
    state = described(outputs["state"])
    assert {key: state[key] for key in workload.args[2]} == described(workload.args[2])
    assert set(state) == {"token_ids", "positions", "eos", "draw"}
    assert outputs["tokens"].shape[0] == workload.args[1][0]["k"].shape[0]


def test_copies_of_cache_leaves_are_forbidden_in_the_loop() -> None:
    workload = workloads.qwen3_generate()
    leaf = 2048 * 8 * 128 * 2
    assert only(workload, NoCopyInLoopAbove).limit_bytes == leaf - 1
    assert only(workload, NoCopyAbove).limit_bytes == leaf - 1
    assert only(workload, LoopOfTrips).trips == 16
    assert not of_type(workloads.qwen3_generate(steps=1), LoopOfTrips)


def test_expected_kernels_are_counted_per_layer() -> None:
    """Other tests check these expectations on the goldens."""
    counts = of_type(workloads.qwen3_generate(3), KernelCount)
    assert {count.name: count.count for count in counts} == {
        "norm_matvec": 4,
        "decode_attention": 3,
        "matvec_add": 6,
        "norm_swiglu": 3,
    }
    counts = of_type(workloads.qwen3_generate(3, batch=2), KernelCount)
    assert {count.name: count.count for count in counts} == {
        "batch_product": 9,
        "batch_attention": 3,
        "batch_swiglu": 3,
    }
    counts = of_type(workloads.qwen3_prompts(3), KernelCount)
    assert {count.name: count.count for count in counts} == {
        "split_heads": 3,
        "prefill_attention": 3,
    }


@pytest.mark.parametrize(("batch", "length"), [(1, 64), (4, 16)])
def test_logits_with_the_shape_of_the_embedding_are_not_forbidden(batch: int, length: int) -> None:
    """Prompts of as many tokens as the model is wide have such logits."""
    workload = workloads.qwen3_prompts(2, batch, length, 96, config=SMALL)
    forbidden = [expectation.dims for expectation in of_type(workload, NoValueOfShape)]
    assert (SMALL.hidden_size, SMALL.vocab_size) not in forbidden
    assert forbidden == ([(batch, length, SMALL.vocab_size)] if batch > 1 else [])


def test_a_config_may_be_a_checkpoint_or_values(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(huggingface_config(SMALL)))
    for config in (str(tmp_path), asdict(SMALL)):
        reference = f"{MODULE}:qwen3_generate(config={config!r}, layers=None, dtype='float32')"
        workload = load_workload(find_workload(reference))
        assert workload.name == "qwen3-generate-layers28"
        embedding = workload.args[0]["embed"]["weight"]
        assert (embedding.shape, embedding.dtype.name) == ((640, 64), "float32")


@pytest.mark.slow
def test_expectations_hold_for_sampled_tokens(compiled: Any) -> None:
    """Other tests check the greedy loop."""
    name = f"{MODULE}:qwen3_generate(layers=1, batch=3, cache_length=512, candidates=64)"
    program = compiled(name, "cublas").dump
    findings = check_all(compiled(name, "cublas").dump.expectations, program)
    assert [finding.expectation for finding in findings if not finding.holds] == []
    assert len(findings) == 12


@pytest.mark.slow
def test_every_step_without_kernels_reads_weights_and_cache_once(compiled: Any) -> None:
    dump = compiled(f"{MODULE}:qwen3_generate(layers=1, implementation='xla')", "cublas").dump
    assert [it.expectation for it in check_all(dump.expectations, dump) if not it.holds] == []
    (traffic,) = (
        it for it in dump.expectations if isinstance(it, TrafficAtMost) and it.under == "cublas"
    )
    of_fifteen_steps = replace(traffic, limit_bytes=traffic.limit_bytes * 15 // 16)
    (finding,) = check_all([of_fifteen_steps], dump)
    assert not finding.holds
