"""Which output replaces which argument in the next call."""

from dataclasses import dataclass

import pytest

from xlapipe.plans.carried import Argument, carried, leaves_below


@dataclass(frozen=True)
class Leaf:
    path: str
    dtype: str = "float32"
    shape: tuple[int, ...] = (8, 8)


def arguments(*leaves: Leaf, donated: str = "") -> list[Argument]:
    names = dict.fromkeys(leaf.path.partition("[")[0].partition(".")[0] for leaf in leaves)
    return [Argument(name, leaves_below(name, leaves), name in donated.split()) for name in names]


CASES = [
    # parameters and an optimizer's state that holds trees of the same paths
    (
        [Leaf("params['w']"), Leaf("opt[0].mu['w']"), Leaf("opt[0].nu['w']"), Leaf("x")],
        "",
        [Leaf("out[0]['w']"), Leaf("out[1][0].mu['w']"), Leaf("out[1][0].nu['w']"), Leaf("out[2]")],
        {"params": "out[0]", "opt": "out[1]"},
    ),
    # bfloat16 parameters that come back as float32, beside float32 moments of the same paths
    (
        [Leaf("params['w']", "bfloat16"), Leaf("opt.mu['w']"), Leaf("opt.nu['w']")],
        "",
        [Leaf("out[0]['w']"), Leaf("out[1].mu['w']"), Leaf("out[1].nu['w']")],
        {"params": "out[0]", "opt": "out[1]"},
    ),
    # gradients that are accumulated in float32; parameters are not returned
    (
        [Leaf("params['w']", "bfloat16"), Leaf("sums['w']")],
        "",
        [Leaf("out['w']")],
        {"sums": "out"},
    ),
    # one array: only if it is donated, or an output has its name
    ([Leaf("x")], "", [Leaf("out")], {}),
    ([Leaf("x")], "x", [Leaf("out")], {"x": "out"}),
    ([Leaf("cache")], "", [Leaf("out['logits']"), Leaf("out['cache']")], {"cache": "out['cache']"}),
    # numbers of a tuple are no names
    ([Leaf("batch[0]"), Leaf("batch[1]")], "", [Leaf("out[0]", shape=()), Leaf("out[1]")], {}),
    (
        [Leaf("s[0]"), Leaf("s[1]")],
        "",
        [Leaf("out[0][0]"), Leaf("out[0][1]"), Leaf("out[1]")],
        {"s": "out[0]"},
    ),
    # a leaf that the first call lacks
    (
        [Leaf("s['w']"), Leaf("s['b']")],
        "",
        [Leaf("out['w']"), Leaf("out['b']"), Leaf("out['m']")],
        {"s": "out"},
    ),
    # of two arguments, the donated one
    ([Leaf("old['w']"), Leaf("new['w']")], "new", [Leaf("out['w']")], {"new": "out"}),
    # variables of Flax's nnx.jit
    (
        [Leaf("model.linear.kernel"), Leaf("x")],
        "",
        [Leaf("out"), Leaf("updated.model.linear.kernel")],
        {"model": "updated.model"},
    ),
]


@pytest.mark.parametrize(("leaves", "donated", "outputs", "expected"), CASES)
def test_outputs_replace_arguments_of_their_paths(
    leaves: list[Leaf], donated: str, outputs: list[Leaf], expected: dict[str, str]
) -> None:
    assert carried(arguments(*leaves, donated=donated), outputs, {}) == expected


def test_a_single_array_that_nothing_else_decides_comes_back_beside_a_state() -> None:
    leaves = arguments(Leaf("s['w']"), Leaf("step", "int32", ()))
    outputs = [Leaf("out[0]['w']"), Leaf("out[1]", "int32", ())]
    assert carried(leaves, outputs, {}, lambda *_: True) == {"s": "out[0]", "step": "out[1]"}
    assert carried(leaves, outputs, {}, lambda *_: False) == {"s": "out[0]"}
    assert carried(leaves[1:], outputs, {}, lambda *_: True) == {}


def test_what_the_author_states_comes_first() -> None:
    leaves = arguments(Leaf("old['w']"), Leaf("new['w']"))
    outputs = [Leaf("out[0]['w']"), Leaf("out[1]['w']")]
    assert carried(leaves, outputs, {"old": "out[1]"}) == {"old": "out[1]", "new": "out[0]"}
    assert carried(leaves, outputs, {"old": None}) == {"new": "out[0]"}
