"""Donated buffers in every form, compared with XLA's aliases, allocations and offsets.

Whether a buffer is copied is decided there by memory alone: all values of a buffer's size that are
not in a donated buffer must be accounted for.
"""

from collections.abc import Callable

import pytest

from tests.folders import STEPS
from tests.steps.aliasing_forms import FORMS
from tests.zoo.batch import compile_batch, dumps_of
from xlapipe.dump.dump import Dump
from xlapipe.plans.donation import DonationOutcome, donations
from xlapipe.registry import WorkloadReference

pytestmark = [pytest.mark.jax, pytest.mark.slow]


@pytest.fixture(scope="module")
def dump_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dump]:
    """All forms, compiled in one child; capturing compares each with jax's memory analysis."""
    folder = tmp_path_factory.mktemp("forms")
    references = [
        WorkloadReference(name, "aliasing_forms:form", {"name": name}, STEPS) for name in FORMS
    ]
    references.append(WorkloadReference("propagated", "aliasing_forms:propagated", folder=STEPS))
    return dumps_of(compile_batch(references, folder, more_paths=[STEPS.parents[1]]))


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str, dump_of: Callable[[str], Dump], jaxlib_version: str) -> None:
    form, dump = FORMS[name], dump_of(name)
    plan, rows = dump.plan, donations(dump)
    number = {leaf.path: leaf.parameter_number for leaf in dump.arguments}
    aliased = {alias.parameter_number for alias in plan.aliases}
    assert aliased == {number[path] for path in form.aliased}
    assert {row.path for row in rows if row.output} == set(form.aliased)
    assert dump.manifest.memory_analysis is not None
    in_place = [row for row in rows if row.output]
    alias_bytes = sum(space.aliased_bytes for space in plan.spaces.values())
    assert sum(row.size_bytes for row in in_place) == alias_bytes

    donated = {plan.parameter_allocation(number[path]) for path in form.donated}
    elsewhere = {
        (allocation.index, value.offset_bytes)
        for allocation in plan.allocations
        if allocation not in donated and allocation.parameter_number is None
        for value in allocation.values
        if value.size_bytes == form.buffer_bytes
    }
    copied = {row.path: row.reason for row in rows if row.outcome is DonationOutcome.COPIED}
    assert (len(elsewhere) > form.others) == bool(copied), (elsewhere, copied)
    if jaxlib_version == "0.11.2":
        assert set(copied) == set(form.copied), copied


def test_an_argument_has_the_bytes_of_the_sharding_that_xla_chose(
    dump_of: Callable[[str], Dump],
) -> None:
    program = dump_of("propagated")
    half = 64 * 256 * 4 // 2
    for leaf in program.arguments:
        allocation = program.plan.parameter_allocation(leaf.parameter_number)
        assert allocation is not None
        assert (leaf.size_bytes, allocation.size_bytes, leaf.spec) == (half, half, ("x",))
    (row,) = donations(program)
    assert (row.outcome, row.size_bytes) == (DonationOutcome.ALIASED, half)
