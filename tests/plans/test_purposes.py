"""What values are for, in steps where it is easily mistaken."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.folders import STEPS
from tests.zoo.batch import compile_batch, dumps_of
from xlapipe.dump.dump import Dump
from xlapipe.plans.donation import donations
from xlapipe.plans.occupancy import CountedValue
from xlapipe.plans.purposes import Purpose
from xlapipe.plans.returned import returned
from xlapipe.registry import WorkloadReference
from xlapipe.report.overview.overview import Overview
from xlapipe.report.xla_subject import XlaSubject

pytestmark = pytest.mark.jax

NAMES = (
    *("accumulation", "square_batch", "replay", "stack", "gather", "host", "sort", "debug"),
    "unchanged",
)
MATRIX = 512 * 512 * 4


@pytest.fixture(scope="module")
def dump_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dump]:
    """All steps by name, compiled in one child."""
    references = [WorkloadReference(name, f"purposes:{name}", {}, STEPS) for name in NAMES]
    folder = tmp_path_factory.mktemp("purposes")
    return dumps_of(compile_batch(references, folder, more_paths=[STEPS.parents[1]]))


@pytest.fixture
def shown(dump_of: Callable[[str], Dump]) -> Callable[[str], Overview]:
    return lambda name: Overview(XlaSubject(dump_of(name)))


def bytes_of(overview: Overview) -> Counter[Purpose]:
    """Bytes by purpose."""
    return Counter({row.purpose: row.counted_bytes for row in overview.by_purpose})


def purposes_of(overview: Overview, opcode: str) -> set[Purpose]:
    """Purposes of the matrices that instructions of an opcode make."""
    occupancy = overview.peak.occupancy
    return {
        overview.uses.of(CountedValue(allocation, value, role, MATRIX)).purpose
        for allocation in overview.plan.device_allocations
        for value in allocation.values
        if value.size_bytes == MATRIX and value.instruction in overview.plan.instructions
        for role in [occupancy.role(allocation, value)]
        if overview.plan.instructions[value.instruction].opcode.startswith(opcode)
    }


def test_batches_are_no_weights_and_summed_gradients_are_gradients(shown) -> None:
    sizes = bytes_of(shown("accumulation"))
    assert sizes[Purpose.WEIGHTS] == MATRIX
    assert sizes[Purpose.ARGUMENT] == 4 * 64 * 512 * 4
    assert sizes[Purpose.GRADIENT] >= MATRIX
    assert not sizes[Purpose.OPTIMIZER]


def test_a_batch_of_the_weights_shape_is_an_argument(shown) -> None:
    purposes = {row.name: row.purpose for row in shown("square_batch").rows}
    assert purposes["weights['w']"] is Purpose.WEIGHTS
    assert purposes["batch"] is Purpose.ARGUMENT


def test_a_buffer_of_samples_is_an_argument_that_is_updated(shown) -> None:
    purposes = {row.name: row.purpose for row in shown("replay").rows}
    assert purposes["weights"] is Purpose.WEIGHTS
    assert purposes["buffer"] is Purpose.UPDATED


def test_what_a_loop_collects_for_the_caller_is_an_output_in_one_buffer(shown) -> None:
    overview = shown("stack")
    (row,) = [row for row in overview.rows if row.counted_bytes >= 100 * 4096 * 4]
    assert (row.purpose, row.values, row.shapes) == (
        Purpose.OUTPUT,
        1,
        (("f32[100,4096]", 1),),
    )


def test_a_weight_that_is_gathered_for_a_product_alone_is_not_saved(shown) -> None:
    overview = shown("gather")
    assert purposes_of(overview, "all-gather") == {Purpose.COLLECTIVE}
    arguments = {row.name: row.purpose for row in overview.rows}
    assert (arguments["weights"], arguments["x"]) == (Purpose.WEIGHTS, Purpose.ARGUMENT)


def test_moments_from_the_hosts_memory_are_optimizer_state(shown) -> None:
    overview = shown("host")
    assert Purpose.OPTIMIZER in purposes_of(overview, "copy-start")
    assert Purpose.SAVED not in purposes_of(overview, "copy-start")
    assert bytes_of(overview)[Purpose.WEIGHTS] == 2 * MATRIX


def test_scratch_of_a_library_is_a_workspace(shown) -> None:
    (row,) = [row for row in shown("sort").rows if row.purpose is Purpose.WORKSPACE]
    assert row.shapes[0][0].startswith("u8[")


def test_outputs_that_are_written_later_have_a_row(shown) -> None:
    for name in set(NAMES) - {"square_batch"}:  # whose output is a gradient until after the peak
        overview = shown(name)
        totals = overview.plan.totals
        own = totals.live_out_bytes - totals.aliased_bytes
        assert bytes_of(overview)[Purpose.OUTPUT] >= own


def test_an_output_that_is_returned_twice_is_named(dump_of) -> None:
    program = dump_of("debug")
    (row,) = returned(program)
    assert row.text == "out[1]['debug'] is out[0], returned twice, 1,048,576 B copied"
    (donation,) = donations(program)
    assert "out[1]['debug']" in donation.advice


def test_an_argument_that_is_returned_as_it_is_is_named(dump_of) -> None:
    (row,) = returned(dump_of("unchanged"))
    assert row.text == "out[0] is w, returned unchanged, 16,384 B copied"
