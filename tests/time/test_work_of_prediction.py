"""How much work cost and prediction of a step are: in proportion to its computations."""

import sys
from typing import Any

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.plan import Plan
from xlapipe.time.cost import step_cost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.predict import predict

ARRAY = "f32[4096]{0}"


def sine(name: str, operand: str) -> str:
    return f"{name} = {ARRAY} sine({operand})"


def computation(name: str, *lines: str) -> str:
    *before, root = (f"x = {ARRAY} parameter(0)", *lines)
    text = "".join(f"  {line}\n" for line in before)
    return f"{name} {{\n{text}  ROOT {root}\n}}\n"


def conditional(name: str, operand: str, true: str, false: str) -> str:
    return (
        f"{name} = {ARRAY} conditional(p, {operand}, {operand}), true_computation={true}, "
        f"false_computation={false}"
    )


def module(*computations: str) -> Plan:
    return plan_of_text("HloModule work, is_scheduled=true\n" + "".join(computations))


def nested_conditionals(depth: int) -> Plan:
    """A conditional in a branch of another one, with a kernel in each of the other branches."""
    computations = [computation("t0", sine("y0", "x"))]
    for level in range(1, depth + 1):
        inner = conditional(f"y{level}", f"b{level}", f"t{level - 1}", f"f{level}")
        before = ("p = pred[] constant(true)", sine(f"b{level}", "x"))
        name = "ENTRY main" if level == depth else f"t{level}"
        computations.append(computation(f"f{level}", sine(f"z{level}", "x")))
        computations.append(computation(name, *before, inner))
    return module(*computations)


def conditionals_in_sequence(count: int) -> Plan:
    """Conditionals that follow each other, each with two branches of one kernel."""
    branches = [
        computation(f"{side}{number}", sine(f"{side}y{number}", "x"))
        for number in range(count)
        for side in "tf"
    ]
    conditionals = [
        conditional(f"c{number}", f"c{number - 1}" if number else "x", f"t{number}", f"f{number}")
        for number in range(count)
    ]
    return module(*branches, computation("ENTRY main", "p = pred[] constant(true)", *conditionals))


def nested_loops(depth: int) -> Plan:
    """A loop of three trips in the body of another one, after a kernel."""
    computations = [computation("t0", sine("y0", "x")), computation("c", "r = pred[] constant(1)")]
    for level in range(1, depth + 1):
        loop = (
            f"y{level} = {ARRAY} while(b{level}), condition=c, body=t{level - 1}, "
            'backend_config={"known_trip_count":{"n":"3"}}'
        )
        name = "ENTRY main" if level == depth else f"t{level}"
        computations.append(computation(name, sine(f"b{level}", "x"), loop))
    return module(*computations)


def calls_of(plan: Plan) -> int:
    """Calls of functions, Python's and C's, that cost and prediction of a plan make."""
    calibration, speeds = shipped_calibration("h200"), device_of_target("h200")
    assert calibration is not None
    calls = 0

    def count(frame: object, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        cost = step_cost(plan, speeds)
        assert cost is not None
        prediction = predict(plan, cost, calibration)
    finally:
        sys.setprofile(None)
    assert prediction.kernels
    return calls


@pytest.mark.parametrize(
    ("plan_of", "size"),
    [(nested_conditionals, 8), (conditionals_in_sequence, 250), (nested_loops, 8)],
)
def test_work_grows_with_the_computations(plan_of: Any, size: int) -> None:
    calls_of(plan_of(size))  # what is computed once in a process
    once, twice = calls_of(plan_of(size)), calls_of(plan_of(2 * size))
    assert twice < 2.4 * once
