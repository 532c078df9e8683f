"""A step over several hosts is traced as each process sees itself; the programs are compared."""

import inspect

import pytest

from tests.steps import several_processes
from tests.steps.several_processes import workload
from xlapipe.compile.lowering.lower import lower
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.topology import Topology

CONFIG = target_named("h200").config_text


def processes(form: str, topology: str = "2x8", devices: int = 16) -> str:
    made = lower(workload(form, devices), CONFIG, topology=Topology.parse(topology))
    assert made.call is not None
    return made.call.processes


def line_of(text: str) -> str:
    lines = inspect.getsource(several_processes).splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"several_processes.py:{number}"


@pytest.mark.parametrize("form", ["same", "size", "callback"])
def test_processes_that_trace_the_same_program(form: str) -> None:
    assert processes(form) == ""


def test_a_process_that_asks_for_its_number_is_named_with_the_line() -> None:
    text = processes("process")
    assert "process 1: `" in text
    assert line_of("y = y + 1") in text
    assert "the step asks jax.process_index() at" in text
    assert line_of("jax.process_index() == 1") in text
    assert "processes 1" not in processes("process", "4x4")


def test_constants_that_depend_on_local_devices_differ_in_each_process() -> None:
    text = processes("local", "4x4")
    assert "process 1: `" in text
    assert "process 3: `" in text
    assert "jax.local_devices() at" in text
    assert line_of("jax.local_devices()") in text


def test_a_step_that_is_another_program_at_each_trace_is_told_apart() -> None:
    assert processes("constant").startswith("each trace of the step is another program")


def test_many_processes_are_sampled_and_the_number_is_stated() -> None:
    text = processes("same", "64x1", devices=64)
    assert text == "4 processes of 64 were traced, and lower to the same program: 0, 1, 32, 63"
