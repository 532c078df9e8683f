"""Each donation that fails gets its own cause, and its advice leads to one that holds."""

from collections.abc import Callable

import pytest

from tests.folders import STEPS
from tests.steps.donation_causes import CAUSES
from tests.zoo.batch import compile_batch, dumps_of
from xlapipe.dump.dump import Dump
from xlapipe.expect import Donated, NoCopyAbove
from xlapipe.plans.donation import donations
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax

LAYER_BYTES = 4 * 256 * 256 * 2
# The weights are read along another dimension than that in which they are stored, and as they are.
READS_TRANSPOSED, READS_AS_PASSED = "td,ldf->ltf", "td,lfd->ltf"


@pytest.fixture(scope="module")
def dump_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dump]:
    """All steps by `broken-NAME`, `fixed-NAME` or their equation, compiled in one child."""

    def step(name: str, function: str, /, **arguments: str) -> WorkloadReference:
        return WorkloadReference(name, f"donation_causes:{function}", arguments, STEPS)

    references = [step(f"broken-{name}", "broken", name=name) for name in CAUSES]
    references += [
        step(f"fixed-{name}", "fixed", name=name) for name, cause in CAUSES.items() if cause.fixed
    ]
    references += [
        step(name, "layers", equation=name) for name in (READS_TRANSPOSED, READS_AS_PASSED)
    ]
    folder = tmp_path_factory.mktemp("causes")
    return dumps_of(compile_batch(references, folder, more_paths=[STEPS.parents[1]]))


@pytest.mark.parametrize("name", CAUSES)
def test_a_failed_donation_names_its_cause(name: str, dump_of: Callable[[str], Dump]) -> None:
    program = dump_of(f"broken-{name}")
    row = next(row for row in donations(program) if row.path == "a")
    assert not row.holds
    assert CAUSES[name].reason in row.reason
    assert CAUSES[name].advice in row.advice
    (violation,) = Donated("a").check(program).violations
    assert row.reason in violation.found
    assert violation.advice == row.advice


@pytest.mark.parametrize("name", [name for name, cause in CAUSES.items() if cause.fixed])
def test_a_donation_holds_after_its_advice(name: str, dump_of: Callable[[str], Dump]) -> None:
    assert Donated("a").check(dump_of(f"fixed-{name}")).violations == ()


def test_a_copy_in_another_order_is_gone_after_its_advice(dump_of: Callable[[str], Dump]) -> None:
    limit = NoCopyAbove(LAYER_BYTES // 2)
    (violation,) = limit.check(dump_of(READS_TRANSPOSED)).violations
    assert violation.found.endswith("of ws")
    assert "pass ws in that order" in violation.advice
    assert limit.check(dump_of(READS_AS_PASSED)).violations == ()
