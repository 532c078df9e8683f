"""Blocks of unrolled models: what is found, and the code that is printed for them."""

import ast
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from tests.steps import block_steps
from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.compile.lowering.forward_values import forward_graph
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.search.candidate import StepChange
from xlapipe.search.choosing.blocks import blocks_text
from xlapipe.search.choosing.compiles import forward_graph_at, target_device
from xlapipe.search.choosing.policies import (
    BLOCK,
    PolicyPlace,
    chosen_values,
    places_of,
    presets,
)
from xlapipe.search.choosing.search import keep_within

STEPS = Path(block_steps.__file__).parent
CHOSEN, OTHERS = (4, 8), ((2, 16), (6, 4), (3, 32))
# On the CPU they let the additions of a sum depend on what is around it.
REORDERING_PASSES = "fusion,dot-library-rewriter,algsimp"
FOUND = {
    "plain transformer": "4 × block, 4 × attention, 4 × mlp",
    "plain encoder and decoder": "3 × encoder_block, 9 × attention, 6 × mlp, 3 × decoder_block",
    "plain mixture of experts": "3 × expert_block, 6 × mlp",
    "plain state space": "3 × state_block, 3 × advance, 3 × mlp",
    "nnx transformer": "4 × NnxBlock",
    "nnx transformer with dropout": "4 × NnxDroppingBlock, 4 × NnxAttention, 4 × NnxBlock",
    "nnx U-Net": "5 × NnxBlock",
    "linen ViT": "4 × LinenBlock",
    "linen ResNet": "3 × ResidualBlock",
    "equinox transformer": "4 × Block",
}
PARTS = "4 × attention, 4 × mlp"
FOUND_INSIDE = {
    "jitted": f"4 × jitted_block, {PARTS}",
    "jitted where it is called": f"4 × encoder_block, {PARTS}",
    "under vmap": f"4 × encoder_block, {PARTS}",
    "checkpointed": f"4 × checkpointed_block, {PARTS}",
    "half of them checkpointed": f"4 × encoder_block, {PARTS}",
    "half of them scanned": "3 × encoder_block, 3 × attention, 3 × mlp",
    "all in one checkpoint": f"4 × encoder_block, {PARTS}",
}
# CI pastes into the others too.
QUICK = ("nnx transformer", "jitted", "half of them scanned")


@pytest.fixture(autouse=True)
def undo() -> Iterator[None]:
    yield
    stop()


def source_of(name: str) -> str:
    if name.startswith("equinox"):
        return (STEPS / "equinox_block_steps.py").read_text(encoding="utf-8")
    return (STEPS / "block_steps.py").read_text(encoding="utf-8")


def loaded(folder: Path, source: str) -> ModuleType:
    """A module of the steps, imported again."""
    folder.mkdir(exist_ok=True)
    path = folder / "own_steps.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("own_steps", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lowered(module: ModuleType, name: str, size: tuple[int, int] = CHOSEN) -> Any:
    step, arguments = module.STEPS[name](*size)
    jax.clear_caches()
    return jax.jit(step).lower(*arguments)


def places(folder: Path, name: str) -> tuple[PolicyPlace, ...]:
    record = folder / "graph.json"
    apply_policy(PolicyChange(record=str(record)))
    lowered(loaded(folder, source_of(name)), name)
    stop()
    graph = forward_graph_at(record)
    assert blocks_text(graph.repeated) == {**FOUND, **FOUND_INSIDE}[name]
    return places_of(graph)


def pasted(source: str, change: StepChange) -> str:
    """The source with the printed code, and with the lines that its comments say to write."""
    lines = source.splitlines(keepends=True)
    body = {
        min((node.lineno, *(own.lineno for own in node.decorator_list))): node.body
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    found = (re.match(r"# .*?:(\d+): write ", text) for text in change.code.splitlines())
    at = [(int(match[1]), "first" in match.string, match.string) for match in found if match]
    for number, _, text in sorted(at, reverse=True):
        decorator = text.partition("write @")[2].partition(" ")[0]
        quoted = text.split("`")[1::2]
        indent = lines[number - 1][: -len(lines[number - 1].lstrip())]
        if decorator:
            lines[number - 1] = f"{indent}@{decorator}\n{lines[number - 1]}"
        elif text.endswith("as its first statement"):
            docstring, *others = body[number] if len(body[number]) > 1 else (None, *body[number])
            is_docstring = isinstance(getattr(docstring, "value", None), ast.Constant)
            first = others[0] if docstring is None or is_docstring else docstring
            lines[first.lineno - 1] = f"{indent}    {quoted[0]}\n{lines[first.lineno - 1]}"
        elif len(quoted) == 2:
            assert lines[number - 1].count(quoted[1]) == 1
            lines[number - 1] = lines[number - 1].replace(quoted[1], quoted[0])
        else:
            lines[number - 1] = f"{indent}{quoted[0]}\n"
    first = next(number for number, line in enumerate(lines) if line.startswith("WIDTH"))
    return "".join((*lines[:first], change.code, *lines[first:]))


def outputs(module: ModuleType, name: str) -> list[np.ndarray[Any, Any]]:
    _, arguments = module.STEPS[name](*CHOSEN)
    compiler_options = {"xla_disable_hlo_passes": REORDERING_PASSES}
    compiled = lowered(module, name).compile(compiler_options=compiler_options)
    results = compiled(*block_steps.filled(arguments))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (*FOUND, *FOUND_INSIDE)
    ],
)
def test_the_code_pasted_above_each_block_lowers_to_what_is_compiled(
    name: str, tmp_path: Path
) -> None:
    source = source_of(name)
    first, *parts = (place for place in places(tmp_path, name) if place.kind == BLOCK)
    # Policies do not depend on what the blocks are in: inside of others, one is enough.
    changes = list(presets(first)) if name in FOUND else [next(presets(first))]
    changes += [change for part in parts for change in presets(part)]
    written = lowered(loaded(tmp_path, source), name).as_text()
    for number, change in enumerate(changes):
        by_hand = lowered(loaded(tmp_path / f"{number}", pasted(source, change)), name).as_text()
        apply_policy(change.policy)
        assert lowered(loaded(tmp_path, source), name).as_text() == by_hand != written, change.text
        stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_recomputed_blocks_give_the_same_bits(name: str, tmp_path: Path) -> None:
    first, *others = places(tmp_path, name)
    source = source_of(name)
    written = outputs(loaded(tmp_path / "written", source), name)
    assert max(np.abs(leaf).max() for leaf in written) > 0
    for number, place in enumerate((first, *(own for own in others if own.some is not None))):
        module = loaded(tmp_path / f"{number}", pasted(source, next(presets(place))))
        for ours, theirs in zip(written, outputs(module, name), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain transformer", "nnx transformer", "linen ViT"])
def test_a_searched_policy_keeps_the_same_values_of_blocks_at_other_sizes(
    name: str, tmp_path: Path
) -> None:
    place = places(tmp_path, name)[0]
    kept = keep_within(place.values, place.saved_bytes // 2, target_device("h200"))
    assert kept is not None and kept.groups
    module = loaded(tmp_path / "changed", pasted(source_of(name), chosen_values(kept, place)))

    def kept_at(size: tuple[int, int]) -> Counter[tuple[str, str | None]]:
        step, arguments = module.STEPS[name](*size)
        graph = forward_graph(jax.jit(step).trace(*arguments).jaxpr)
        own = (value for value in graph.values if value.needed and value.key is not None)
        return Counter((value.key.primitive, value.source) for value in own if value.key)

    assert len(kept_at(CHOSEN)) > 1
    for size in OTHERS:
        assert kept_at(size) == kept_at(CHOSEN), size
