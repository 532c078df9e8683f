"""The workloads of generation: their closed forms say what the arguments say."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from models.qwen3 import workloads
from models.qwen3.checkpoint.random import config_json
from models.qwen3.config import QWEN3_0_6B
from xlapipe import Workload
from xlapipe.errors import WorkloadError
from xlapipe.expect import (
    KernelCount,
    LoopOfTrips,
    MatmulsAccounted,
    NoCopyAbove,
    NoCopyInLoopAbove,
    ParameterBytes,
    check_all,
)
from xlapipe.lowering.lower import load_workload
from xlapipe.registry import find_workload

SMALL = replace(QWEN3_0_6B, vocab_size=640, hidden_size=64, tie_word_embeddings=False)
MODULE = "models.qwen3.workloads"

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "generate": lambda: workloads.qwen3_generate(implementation="xla"),
    "generate-sampled": lambda: workloads.qwen3_generate(3, 4, 96, 5, None, SMALL),
    "generate-sampled64": lambda: workloads.qwen3_generate(2, 3, 96, 5, 64, SMALL),
    "prompts": lambda: workloads.qwen3_prompts(implementation="xla"),
    "prompts-sampled64": lambda: workloads.qwen3_prompts(
        2, 3, 16, 96, 64, SMALL, implementation="xla"
    ),
}


def only(workload: Workload, kind: type[Any]) -> Any:
    (found,) = [each for each in workload.expectations if isinstance(each, kind)]
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_parameter_bytes_are_those_of_the_arguments(name: str) -> None:
    workload = WORKLOADS[name]()
    leaves = jax.tree.leaves(workload.args)
    assert only(workload, ParameterBytes).total_bytes == sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_scopes_of_all_matmuls_are_named_once(name: str) -> None:
    workload = WORKLOADS[name]()
    text = jax.jit(workload.fn).lower(*workload.args).as_text(debug_info=True)
    dots = text.count("stablehlo.dot_general")
    accounted = [each for each in workload.expectations if isinstance(each, MatmulsAccounted)]
    assert accounted
    for each in accounted:
        assert dots == sum(matmul.count for matmul in each.matmuls)


@pytest.mark.parametrize("name", WORKLOADS)
def test_cache_and_state_come_back_as_they_were(name: str) -> None:
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


def test_a_loop_may_copy_no_leaf_of_the_cache() -> None:
    workload = workloads.qwen3_generate()
    leaf = 2048 * 8 * 128 * 2
    assert only(workload, NoCopyInLoopAbove).limit_bytes == leaf - 1
    assert only(workload, NoCopyAbove).limit_bytes == leaf - 1
    assert only(workload, LoopOfTrips).trips == 16
    one = workloads.qwen3_generate(steps=1)
    assert not [each for each in one.expectations if isinstance(each, LoopOfTrips)]


def test_a_workload_that_differs_has_a_folder_of_its_own() -> None:
    assert workloads.qwen3_generate().name == "qwen3-generate"
    assert workloads.qwen3_generate(implementation="xla").name == "qwen3-generate-xla"
    found = workloads.qwen3_generate(28, 4, 512, 8, 64).name
    assert found == "qwen3-generate-layers28-batch4-cache512-steps8-sampled64"
    assert workloads.qwen3_prompts(length=64, candidates=None).name == (
        "qwen3-prompts-length64-sampled"
    )


def test_kernels_are_named_where_they_are() -> None:
    """That they hold is seen on the goldens; here, that every one of a layer is counted."""
    found = [e for e in workloads.qwen3_generate(3).expectations if isinstance(e, KernelCount)]
    assert {each.name: each.count for each in found} == {
        "norm_matvec": 4,
        "decode_attention": 3,
        "matvec_add": 6,
        "norm_swiglu": 3,
    }
    found = [e for e in workloads.qwen3_prompts(3).expectations if isinstance(e, KernelCount)]
    assert {each.name: each.count for each in found} == {"split_heads": 3, "prefill_attention": 3}


def test_a_config_may_be_a_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json(SMALL)))
    reference = f"{MODULE}:qwen3_generate(config={str(tmp_path)!r}, layers=None, dtype='float32')"
    workload = load_workload(find_workload(reference))
    assert workload.name == "qwen3-generate-layers28"
    embedding = workload.args[0]["embed"]["weight"]
    assert (embedding.shape, embedding.dtype.name) == ((640, 64), "float32")


def test_a_workload_that_is_none_takes_no_arguments() -> None:
    with pytest.raises(WorkloadError, match="is no function"):
        load_workload(find_workload(f"{MODULE}:QWEN3_0_6B(layers=2)"))


def test_expectations_hold_where_tokens_are_drawn(compiled: Any) -> None:
    """The greedy loop is held to them as a registered workload is, and where it is built."""
    name = f"{MODULE}:qwen3_generate(batch=3, cache_length=512, candidates=64)"
    program = compiled(name, "cublas").dump.program
    findings = check_all(compiled(name, "cublas").dump.expectations, program)
    assert [finding.expectation for finding in findings if not finding.holds] == []
    assert len(findings) == 9
