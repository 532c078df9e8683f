"""Every program of the zoo: its plan agrees with memory_analysis() of the same compile."""

import linecache
from collections.abc import Callable
from math import prod

import pytest

from tests.zoo.batch import PROGRAMS, Batch, compile_batch, dumps_of, programs
from xlapipe.dump.dump import Dump
from xlapipe.expect import check_all, expectation_from_json
from xlapipe.plans.memory_spaces import MemorySpace

REFERENCES = {reference.name: reference for reference in programs()}

# Callbacks per step, in the order of the source.
CALLBACKS = {
    "debug_callback": 1,
    "debug_print": 1,
    "debug_print_in_scan": 1,
    "debug_print_ordered": 2,
    "io_callback_ordered": 1,
    "io_callback_unordered": 1,
    "pure_callback": 1,
}
ALIASES = {
    "donated_and_unused": 1,
    "donated_without_a_match": 0,
    "identity": 0,
    "identity_donated": 1,
    "jit_donating_by_name": 1,
    "jit_donating_by_position": 1,
    "nnx_jit": 0,
    "offloaded_optimizer_state": 2,
    "partial_of_jitted": 1,
    "scatter_in_place": 1,
    "workload_donates_by_name": 1,
    "workload_static_by_position": 1,
}
HOST_BYTES = {
    "argument_on_the_host": 128 * 256 * 4,
    "offloaded_activations": 4 * 128 * 128 * 4,
    "offloaded_optimizer_state": 128 * 256 * 4,
    "output_on_the_host": 128 * 256 * 4,
}
# cuDNN calls whose workspace is known only on a GPU.
UNFINISHED_CALLS = {"cudnn_attention": 1, "cudnn_attention_gradient": 2}
_SHARDED = [name for name, it in REFERENCES.items() if it.target.startswith("sharded:")]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return compile_batch(REFERENCES.values(), tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def dump_of(batch: Batch) -> Callable[[str], Dump]:
    return dumps_of(batch)


@pytest.mark.parametrize("name", REFERENCES)
def test_plan_agrees_with_memory_analysis(name: str, dump_of: Callable[[str], Dump]) -> None:
    dump = dump_of(name)
    assert dump.plan.notes == ()  # every section was read
    analysis, spaces = dump.manifest.memory_analysis, dump.plan.spaces
    for space, prefix in ((MemorySpace.HBM, ""), (MemorySpace.HOST, "host_")):
        totals = spaces[space]
        assert {
            "argument": totals.parameter_bytes,
            "output": totals.live_out_bytes,
            "alias": totals.aliased_bytes,
            "temp": totals.temp_bytes,
        } == {
            kind: analysis.get(f"{prefix}{kind}_bytes", 0)
            for kind in ("argument", "output", "alias", "temp")
        }, space


@pytest.mark.parametrize("name", REFERENCES)
def test_leaves_have_the_size_of_their_parameters(
    name: str, dump_of: Callable[[str], Dump]
) -> None:
    dump = dump_of(name)
    for leaf in dump.manifest.arguments:
        if leaf.parameter_number is not None:
            allocation = dump.plan.parameter_allocation(leaf.parameter_number)
            assert allocation is not None, leaf.path
            assert leaf.size_bytes == allocation.size_bytes, leaf.path


def test_expectations_of_the_programs_hold(dump_of: Callable[[str], Dump]) -> None:
    findings = []
    for name in REFERENCES:
        dump = dump_of(name)
        expectations = tuple(
            expectation_from_json(data, where=name)
            for data in dump.manifest.expectations
            if data is not None
        )
        findings += [(name, finding) for finding in check_all(expectations, dump)]
    assert [(name, finding) for name, finding in findings if not finding.holds] == []
    assert len(findings) > 10


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_are_listed_with_their_lines(name: str, dump_of: Callable[[str], Dump]) -> None:
    calls = dump_of(name).plan.host_callbacks
    assert len(calls) == CALLBACKS[name]
    for call in calls:
        assert call.source is not None
        line = linecache.getline(str(PROGRAMS / call.source.file), call.source.line)
        assert "callback(" in line or "debug.print(" in line, (call.source, line)


def test_only_programs_with_callbacks_list_any(dump_of: Callable[[str], Dump]) -> None:
    assert {name for name in REFERENCES if dump_of(name).plan.host_callbacks} == set(CALLBACKS)


def test_calls_without_workspace_are_listed(dump_of: Callable[[str], Dump]) -> None:
    calls = {name: dump_of(name).plan.unfinished_calls for name in REFERENCES}
    assert {name: len(it) for name, it in calls.items() if it} == UNFINISHED_CALLS


@pytest.mark.parametrize("name", ALIASES)
def test_aliases(name: str, dump_of: Callable[[str], Dump]) -> None:
    assert len(dump_of(name).plan.aliases) == ALIASES[name]


def test_host_bytes(dump_of: Callable[[str], Dump]) -> None:
    hosts = {name: dump_of(name).plan.spaces[MemorySpace.HOST] for name in REFERENCES}
    totals = {name: host.total_allocation_bytes for name, host in hosts.items()}
    assert {name: size for name, size in totals.items() if size} == HOST_BYTES


@pytest.mark.parametrize("name", _SHARDED)
def test_sharded_programs_are_compiled_for_four_devices(
    name: str, dump_of: Callable[[str], Dump]
) -> None:
    manifest = dump_of(name).manifest
    assert manifest.mesh is not None
    assert prod(manifest.mesh.values()) == 4
    assert manifest.topology == "1x4"


def test_step_sees_the_target_where_it_asks(dump_of: Callable[[str], Dump]) -> None:
    assert len(dump_of("asks_where_it_runs").manifest.outputs) == 2


def test_cpu_time_of_the_batch(batch: Batch) -> None:
    """The zoo runs in every `make test`; no program may take more than its share."""
    seconds = {name: batch.cpu_seconds(name) for name in REFERENCES}
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:5]
    print(f"CPU: {sum(seconds.values()):.1f} s;", {name: seconds[name] for name in slowest})
    assert all(seconds[name] < 15 for name in slowest)
