"""Which values a policy keeps, moves to the host or leaves out, and its source."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from xlapipe.compile.lowering.forward_graph import ForwardValue, PolicyKey, PolicySite
from xlapipe.devices.targets.device import device_of_target
from xlapipe.search.choosing.policies import PolicyPlace, chosen_values, offloaded
from xlapipe.search.choosing.search import groups_of, keep_within, solutions

SPEEDS = device_of_target("h200")
MIB = 1 << 20
SITE = PolicySite("scan", "step.py:9", "jax.lax.scan")


def value(number: int, primitive: str, operations: int, *inputs: int, **named: Any) -> ForwardValue:
    """A value of 1 MiB that the backward pass needs."""
    return ForwardValue(
        number=number,
        key=PolicyKey(primitive, ((512, 512),) * (number + 1), "float32", named.get("name")),
        shape=(512, 512),
        dtype="float32",
        size_bytes=MIB,
        operations=operations,
        touched_bytes=3 * MIB,
        inputs=inputs,
        needed=True,
        differentiated=True,
        source="step.py:3",
        loop="step.py:9",
        trips=1,
    )


# A product that takes 15 µs, one that takes 150 µs, and an activation of it.
VALUES = (
    value(0, "dot_general", 10**10),
    value(1, "dot_general", 10**11, 0),
    value(2, "name", 0, 1, name="hidden"),
)


def keys(groups: Any) -> list[int]:
    return sorted(group.values[0].number for group in groups)


@pytest.mark.parametrize(
    ("budget", "offload", "device", "host"),
    [
        (3 * MIB, False, [0, 1, 2], []),
        (2 * MIB, False, [0, 1], []),
        (MIB, False, [1], []),
        (0, False, [], []),
        (MIB, True, [1], []),
        # 2 MiB take 40 µs to the host and back: less than the second product, more than the first.
        (0, True, [], [1]),
    ],
)
def test_least_is_computed_again_within_a_budget(
    budget: int, offload: bool, device: list[int], host: list[int]
) -> None:
    kept = keep_within(VALUES, budget, SPEEDS, offload=offload)
    assert kept is not None
    assert (keys(kept.groups), keys(kept.offloaded)) == (device, host)
    assert kept.kept_bytes == len(device) * MIB <= budget


def test_a_step_that_keeps_nothing_has_no_policies() -> None:
    """Its own jax.checkpoint keeps nothing; `advise` ended in a traceback."""
    assert solutions((), (0.5, 0.0), SPEEDS) == ()
    assert solutions((replace(VALUES[0], key=None),), (0.5, 0.0), SPEEDS) == ()


def test_equal_solutions_are_given_once() -> None:
    assert [keys(kept.groups) for kept in solutions(VALUES, (0.4, 0.35, 0.1), SPEEDS)] == [[1], []]


def test_the_source_of_a_policy_decides_as_the_solution() -> None:
    kept = keep_within(VALUES, 0, SPEEDS, offload=True)
    assert kept is not None
    named = tuple(group for group in groups_of(VALUES) if group.key.name is not None)
    place = PolicyPlace("scan", (SITE,), VALUES)
    change = chosen_values(replace(kept, groups=named), place)
    assert change.text == (
        "keep hidden, offload dot_general float32[512,512] at step.py:3 to the host (scan bodies)"
    )
    assert decisions(change.code) == [False, "pinned_host", True]
    assert decisions(offloaded(named, place).code) == [True, True, "pinned_host"]


@pytest.mark.parametrize("name", ["", "q", "mlp", "a, 'b'\n"])
def test_a_policy_holds_for_every_name(name: Any) -> None:
    """Names of fewer than four letters beside an unnamed value raised IndexError."""
    values = (VALUES[0], VALUES[1], value(2, "name", 0, 1, name=name))
    kept = keep_within(values, 3 * MIB, SPEEDS)
    assert kept is not None and len(kept.groups) == 3
    change = chosen_values(kept, PolicyPlace("scan", (SITE,), values))
    assert decisions(change.code, values) == [True] * 3
    without = tuple(group for group in kept.groups if group.key.name is None)
    change = chosen_values(replace(kept, groups=without), PolicyPlace("scan", (SITE,), values))
    assert decisions(change.code, values) == [True, True, False]


def decisions(code: str, values: Sequence[ForwardValue] = VALUES) -> list[Any]:
    """What the policy of some code answers for each value."""
    pytest.importorskip("jax")
    names: dict[str, Any] = {}
    exec(code, names)
    array = SimpleNamespace(shape=(512, 512), dtype="float32")
    answers = []
    for v in values:
        assert v.key is not None
        inputs = (array,) * len(v.key.input_shapes)
        primitive = SimpleNamespace(name=v.key.primitive)
        answer = names["policy"](primitive, *inputs, name=v.key.name, dimension_numbers=None)
        answers.append(getattr(answer, "dst", answer))
    return answers
