"""Expectations of what a step keeps for its backward pass, on one small program."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from tests.shared.programs import program_of, with_facts
from tests.shared.small_hlo import Place, plan_of_text
from xlapipe.expect import Expectation, NotSaved, Offloaded, Saved
from xlapipe.plans import AllocationKind
from xlapipe.plans.program import ArgumentLeaf, KeptIn, NamedValue, Program

TEXTS = Path(__file__).with_name("texts")
TEXT = (TEXTS / "kept_values_hlo.txt").read_text(encoding="utf-8")
MEMORY: dict[str, Place] = {
    "x": 0, "h": 1, "moved": 2, "wide": 3, "double": 4, "half": 5, "brief": 6, "used": 7,
    "gradient": 8, "out": 9,
}  # fmt: skip
# h is also alive after the last instruction, as an output is.
ALIVE = {
    "x": (0, 9), "h": (1, 10), "moved": (2, 8), "wide": (3, 8), "double": (4, 8), "half": (5, 8),
    "brief": (6, 7), "used": (7, 7), "gradient": (8, 9), "out": (9, 10),
}  # fmt: skip
ON_HOST = (2, 5)


def value(
    shape: tuple[int, ...], kept: KeptIn | None, count: int = 1, trips: int = 1
) -> NamedValue:
    return NamedValue("h", shape, "float32", trips, kept, count, 4 * prod(shape) * trips * count)


def program(*values: NamedValue) -> Program:
    plan = plan_of_text(TEXT, MEMORY, ALIVE)
    allocations = tuple(
        replace(
            allocation,
            color=5 if allocation.index in ON_HOST else 0,
            kinds=(AllocationKind.PREALLOCATED_TEMP,),
        )
        for allocation in plan.allocations
    )
    return program_of(replace(plan, allocations=allocations), named_values=values)


DEVICE, HOST = KeptIn.DEVICE, KeptIn.HOST
CARRIED = (
    "the body returns it as the loop's carry, and the loop keeps the carry that each iteration "
    "gets, on the device"
)
RECOMPUTED = "the backward pass does not use it, or computes it again"


@pytest.mark.parametrize(
    ("expectation", "values", "measured", "found"),
    [
        (Saved("h"), [value((8,), DEVICE)], "32 B", []),
        (Saved("h"), [value((8,), DEVICE), value((16,), DEVICE)], "96 B", []),
        # One value of both iterations of a loop.
        (Saved("h"), [value((8,), DEVICE, trips=2)], "64 B", []),
        (Saved("h"), [value((8,), HOST)], "0 B", ["the policy offloads it to the host's memory"]),
        (Saved("h"), [value((8,), None)], "0 B", [RECOMPUTED]),
        # Not counted: the argument, what is on the host, what only the forward pass reads, and a
        # value of as many bytes or elements.
        (
            Saved("h"),
            [value((8,), DEVICE, count=2)],
            "0 B",
            [
                "jax keeps 2 values, and the plan has 1 of this size from the forward to the "
                "backward pass: XLA computes others again inside of kernels"
            ],
        ),
        (NotSaved("h"), [value((8,), None)], "0 B", []),
        (
            NotSaved("h"),
            [value((8,), DEVICE)],
            "32 B",
            ["32 B of 1 value are kept in device memory"],
        ),
        (NotSaved("h"), [value((8,), HOST)], "32 B", ["32 B of 1 value are kept in host memory"]),
        # XLA left it on the device.
        (
            NotSaved("h"),
            [value((16,), HOST), value((8,), HOST)],
            "96 B",
            [
                "64 B of 1 value are kept in device memory",
                "32 B of 1 value are kept in host memory",
            ],
        ),
        # Another value of its size is on the host.
        (NotSaved("h"), [value((4,), DEVICE)], "0 B", []),
        (NotSaved("h"), [value((3,), DEVICE)], "0 B", []),
        (Offloaded("h"), [value((8,), HOST)], "32 B in host memory", []),
        (
            Offloaded("h"),
            [value((4,), HOST), value((8,), HOST, count=2)],
            "16 B in host memory",
            [
                "the policy offloads 2 values; of this size the plan has 1 in host memory and 1 on "
                "the device from the forward to the backward pass"
            ],
        ),
        (
            Offloaded("h"),
            [value((8,), DEVICE)],
            "0 B in host memory",
            ["it is kept on the device"],
        ),
        (Offloaded("h"), [value((8,), None)], "0 B in host memory", [RECOMPUTED]),
        (Offloaded("h"), [value((8,), KeptIn.CARRY)], "0 B in host memory", [CARRIED]),
        (Saved("h"), [value((8,), KeptIn.CARRY)], "0 B", [CARRIED]),
        (NotSaved("h"), [value((8,), KeptIn.CARRY)], "0 B", []),
        (Saved("k"), [value((8,), DEVICE)], "0 B", ["the step names h"]),
        (NotSaved("k"), [], "0 B", ["the dump records no named value"]),
    ],
)
def test_what_is_kept_and_what_is_wrong(
    expectation: Expectation, values: list[NamedValue], measured: str, found: list[str]
) -> None:
    finding = expectation.check(program(*values))
    stated = [violation.found for violation in finding.violations]
    assert (finding.measured, stated) == (measured, found)


@pytest.mark.parametrize(
    ("expectation", "kept", "expected", "advice"),
    [
        (Saved("h"), HOST, "kept on the device", "expect Offloaded(name) instead"),
        (Saved("h"), None, "kept on the device", "give the policy of jax.checkpoint its name"),
        (
            NotSaved("h"),
            DEVICE,
            "computed again in the backward pass",
            "put the computation under jax.checkpoint",
        ),
        (Offloaded("h"), DEVICE, "kept in host memory", "offload it with jax.checkpoint_policies"),
    ],
)
def test_what_was_expected_and_what_to_do(
    expectation: Expectation, kept: KeptIn | None, expected: str, advice: str
) -> None:
    (violation,) = expectation.check(program(value((8,), kept))).violations
    assert violation.expected == f"h float32[8]: {expected}"
    assert violation.advice.startswith(advice)


def test_values_of_a_loop_are_those_of_each_iteration() -> None:
    assert str(value((2, 8), None)) == "h float32[2,8]"
    assert str(value((2, 8), None, trips=3)) == "h float32[2,8] of each of 3 iterations"
    (violation,) = Offloaded("h").check(program(value((3,), HOST, trips=5))).violations
    assert violation.advice.startswith("scan over the layers")


def test_the_value_that_is_kept_is_named_with_its_line() -> None:
    (violation,) = NotSaved("h").check(program(value((8,), DEVICE))).violations
    assert (violation.where, str(violation.source)) == ("allocation 1, value h", "step.py:11")
    (violation,) = NotSaved("h").check(program(value((8,), HOST))).violations
    assert (violation.where, str(violation.source)) == ("allocation 2, value moved", "step.py:12")


@pytest.mark.parametrize("expectation", [Saved("h"), NotSaved("h")])
def test_without_live_ranges_it_is_unknown(expectation: Expectation) -> None:
    whole = program(value((8,), DEVICE))
    finding = expectation.check(replace(whole, plan=replace(whole.plan, live_ranges=None)))
    assert finding.measured == "unknown"
    assert [violation.expected for violation in finding.violations] == [
        "live ranges of the kept values"
    ]


@pytest.mark.parametrize(
    ("shape", "size_bytes", "holds"),
    [
        ((32,), 128, True),  # A quarter on each of four devices.
        ((8,), 128, True),  # Inside of shard_map, the shape is that of one device's part.
        ((3,), 12, False),
        ((128,), 32, False),  # The bytes of a device's part, but other elements.
    ],
)
def test_of_several_devices_each_has_a_part(
    shape: tuple[int, ...], size_bytes: int, holds: bool
) -> None:
    named = replace(value(shape, DEVICE), size_bytes=size_bytes)
    sharded = ArgumentLeaf("x", (32,), "float32", 32, False, 0, spec=("data",))
    assert Saved("h").check(with_facts(program(named), arguments=(sharded,))).holds is holds
