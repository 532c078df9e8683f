"""Leaves of arguments and outputs as JSON, and the outputs that are most like an argument."""

from typing import Any

import pytest

from tests.shared.hlo_objects import instruction
from tests.shared.programs import program_of
from xlapipe.files.typed_data import MisfitError, typed
from xlapipe.plans import AllocationKind, BufferAllocation, InputOutputAlias, Plan
from xlapipe.plans.donation import LikelyOutputs
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, leaf_json

ARGUMENT = ArgumentLeaf("x", (8,), "float32", 32, True, 0)
OUTPUT = OutputLeaf("out", (8,), "float32", 32, 0)
PLAIN = {"path": "x", "shape": (8,), "dtype": "float32", "size_bytes": 32}


@pytest.mark.parametrize(
    ("leaf", "fields"),
    [
        (ARGUMENT, {"donated": True, "parameter_number": 0}),
        (
            ArgumentLeaf("x", (8,), "float32", 32, False, None, (), "pinned_host"),
            {"donated": False, "parameter_number": None, "spec": (), "memory_kind": "pinned_host"},
        ),
        (
            ArgumentLeaf("x", (8,), "float32", 32, False, 1, (("a", "b"), None, "c")),
            {"donated": False, "parameter_number": 1, "spec": (("a", "b"), None, "c")},
        ),
        (OutputLeaf("x", (8,), "float32", 32, 2), {"index": 2}),
        (
            OutputLeaf("x", (8,), "float32", 32, 2, (None,), "pinned_host", True),
            {"index": 2, "spec": (None,), "memory_kind": "pinned_host", "constant": True},
        ),
    ],
)
def test_a_leaf_lists_what_is_not_the_default(
    leaf: ArgumentLeaf | OutputLeaf, fields: dict[str, Any]
) -> None:
    assert leaf_json(leaf) == PLAIN | fields
    assert typed(type(leaf), leaf_json(leaf)) == leaf


@pytest.mark.parametrize("spec", ["data", [1], [["a", 1]], 3])
def test_a_spec_of_another_form_is_refused(spec: object) -> None:
    with pytest.raises(MisfitError, match=r"^spec"):
        typed(ArgumentLeaf, {**leaf_json(ARGUMENT), "spec": spec})


def test_names_of_outputs() -> None:
    """XLA's index of a single output is empty, and an output may have no name."""
    plan = Plan(())
    single = program_of(plan, outputs=(OUTPUT,))
    assert [*map(single.output_path, ((), (0,), None))] == ["out", "out", "an output"]
    several = program_of(plan, outputs=(OUTPUT, OutputLeaf("more", (8,), "float32", 32, 1)))
    names = [*map(several.output_path, ((1,), (2, 0), ()))]
    assert names == ["more", "output {2,0}", "output {}"]


@pytest.mark.parametrize(
    ("path", "likest"),
    [
        ("cache[0]['v']", "out[1][0]['v']"),
        ("cache[1]['v']", "out[1][1]['v']"),
        ("other['v']", "out[1][0]['v']"),  # the first of two
        ("z", "loss"),  # nothing in common: the first
        ("loss", "loss"),
        ("loss.x", "updated.x"),
        ("x", "updated.x"),
        ("prefix", "loss"),  # the end of a name is not a key
        ("😀['k']", "out[1][0]['k']"),
    ],
)
def test_the_likest_output_has_most_equal_keys_at_its_end(path: str, likest: str) -> None:
    paths = ["loss", "out[1][0]['k']", "out[1][0]['v']", "out[1][1]['v']", "updated.x"]
    outputs = LikelyOutputs(
        (OutputLeaf(name, (8,), "float32", 32, n) for n, name in enumerate(paths)),
        lambda leaf: leaf.shape,
    )
    leaf = ArgumentLeaf(path, (8,), "float32", 32, True, 0)
    found = outputs.like(leaf)
    assert found is not None
    assert found.path == likest
    assert outputs.count(leaf) == 5
    other = ArgumentLeaf(path, (9,), "float32", 36, True, 0)
    assert (outputs.like(other), outputs.count(other)) == (None, 0)


@pytest.mark.parametrize(
    ("config", "emitter"),
    [
        (
            '{"fusion_backend_config":{"kind":"__triton","a":[1, 2]},"x":1}',
            '{"a":[1,2],"kind":"__triton"}',
        ),
        ('{"fusion_backend_config":{}}', ""),
        ('{"other":1}', ""),
        ("", ""),
    ],
)
def test_the_emitters_configuration_is_one_text(config: str, emitter: str) -> None:
    fusion = instruction("f", "fusion", "f32[8]", backend_config=config)
    assert fusion.fusion_backend_config == emitter


def test_an_alias_shows_the_allocation_of_an_output_without_the_module() -> None:
    parameter = BufferAllocation(0, 32, (AllocationKind.PARAMETER,), parameter_number=0)
    second, only = InputOutputAlias(0, (1,)), InputOutputAlias(0, ())
    assert Plan((parameter,), header_aliases=(second,)).output_allocation(1, of=2) is parameter
    assert Plan((parameter,), header_aliases=(second,)).output_allocation(0, of=2) is None
    assert Plan((parameter,), header_aliases=(only,)).output_allocation(0, of=1) is parameter
