"""The workloads of generation: closed forms of their expectations match their arguments."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import pytest

from models.qwen3 import workloads
from models.qwen3.checkpoint.random_checkpoint import huggingface_config
from models.qwen3.config import QWEN3_0_6B
from xlapipe import Workload
from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.errors import WorkloadError
from xlapipe.expect import (
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

SMALL = replace(QWEN3_0_6B, vocab_size=640, hidden_size=64, tie_word_embeddings=False)
MODULE = "models.qwen3.workloads"

WORKLOADS: dict[str, Callable[[], Workload]] = {
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


def of_type(workload: Workload, kind: type[Any]) -> list[Any]:
    return [expectation for expectation in workload.expectations if isinstance(expectation, kind)]


def only(workload: Workload, kind: type[Any]) -> Any:
    """The expectation of a GPU; those of a TPU count the padding of its tiles."""
    (expectation,) = (it for it in of_type(workload, kind) if it.under != "tpu")
    return expectation


@pytest.mark.parametrize("name", WORKLOADS)
def test_parameter_bytes_equal_those_of_the_arguments(name: str) -> None:
    workload = WORKLOADS[name]()
    leaves = jax.tree.leaves(workload.args)
    assert only(workload, ParameterBytes).total_bytes == sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_matmul_is_in_one_expected_scope(name: str) -> None:
    workload = WORKLOADS[name]()
    text = jax.jit(workload.fn).lower(*workload.args).as_text(debug_info=True)
    dots = text.count("stablehlo.dot_general")
    accounted = of_type(workload, MatmulsAccounted)
    assert accounted
    for expectation in accounted:
        assert dots == sum(matmul.count for matmul in expectation.matmuls)


@pytest.mark.parametrize("name", WORKLOADS)
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


def test_variants_of_a_workload_have_different_names() -> None:
    assert workloads.qwen3_generate().name == "qwen3-generate"
    assert workloads.qwen3_generate(implementation="xla").name == "qwen3-generate-xla"
    name = workloads.qwen3_generate(28, 4, 512, 8, 64).name
    assert name == "qwen3-generate-layers28-batch4-cache512-steps8-sampled64"
    assert workloads.qwen3_prompts(length=64, candidates=None).name == (
        "qwen3-prompts-length64-sampled"
    )


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


def test_arguments_for_an_attribute_that_is_not_a_function_are_an_error() -> None:
    with pytest.raises(WorkloadError, match="is not a function"):
        load_workload(find_workload(f"{MODULE}:QWEN3_0_6B(layers=2)"))


def test_a_misspelled_attribute_is_an_error_with_similar_ones() -> None:
    with pytest.raises(
        WorkloadError,
        match=r"no attribute 'qwen3_generte'; fix: name one of its workloads: qwen3_gen",
    ):
        load_workload(find_workload(f"{MODULE}:qwen3_generte"))


def test_expectations_hold_for_sampled_tokens(compiled: Any) -> None:
    """Other tests check the greedy loop."""
    name = f"{MODULE}:qwen3_generate(layers=1, batch=3, cache_length=512, candidates=64)"
    program = compiled(name, "cublas").dump.program
    findings = check_all(compiled(name, "cublas").dump.expectations, program)
    assert [finding.expectation for finding in findings if not finding.holds] == []
    assert len(findings) == 12


@pytest.mark.slow
def test_every_step_without_kernels_reads_weights_and_cache_once(compiled: Any) -> None:
    dump = compiled(f"{MODULE}:qwen3_generate(layers=1, implementation='xla')", "cublas").dump
    assert [
        it.expectation for it in check_all(dump.expectations, dump.program) if not it.holds
    ] == []
    (traffic,) = (
        it for it in dump.expectations if isinstance(it, TrafficAtMost) and it.under == "cublas"
    )
    of_fifteen_steps = replace(traffic, limit_bytes=traffic.limit_bytes * 15 // 16)
    (finding,) = check_all([of_fifteen_steps], dump.program)
    assert not finding.holds
