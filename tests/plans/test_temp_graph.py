"""Which values share memory, and which orders of instructions are tried, on small programs."""

from dataclasses import replace

import pytest

from tests.shared.small_hlo import Place, plan_of_text
from xlapipe.plans import AllocationKind, Plan
from xlapipe.plans.temp_order import temp_graph
from xlapipe.plans.temp_order.instruction_order import _Peak, _Peaks, _Run, order_share
from xlapipe.plans.temp_order.temp_graph import TempBuffer, TempGraph, TempGraphs, order_is_valid
from xlapipe.plans.temp_order.value_structure import ValueStructure

X = "f32[8]{0}"
TEMP, PARAMETER = AllocationKind.PREALLOCATED_TEMP, AllocationKind.PARAMETER
LIVE = AllocationKind.MAYBE_LIVE_OUT


def plan_of(
    entry: str,
    memory: dict[str, Place],
    *computations: str,
    kinds: dict[int, AllocationKind] | None = None,
) -> Plan:
    text = "\n".join(
        ("HloModule m, is_scheduled=true\n", *computations, "ENTRY %main (x: f32[8]) -> f32[8] {")
    )
    plan = plan_of_text(f"{text}{entry}}}\n", memory)
    given = kinds or {}
    allocations = tuple(
        replace(allocation, kinds=(given.get(allocation.index, TEMP),))
        for allocation in plan.allocations
    )
    return replace(plan, allocations=allocations)


def graph_of(plan: Plan, name: str = "main") -> TempGraph:
    assert plan.module is not None
    return TempGraphs(plan, plan.module).graph(plan.module.computations[name], frozenset())


def named(graph: TempGraph) -> dict[str, tuple[int, list[str]]]:
    """Bytes of each buffer, and the instructions that write or read it."""
    return {
        buffer.name: (buffer.size_bytes, [graph.names[node] for node in buffer.nodes])
        for buffer in graph.buffers
    }


def after(graph: TempGraph) -> dict[str, set[str]]:
    return {
        name: {graph.names[node] for node in nodes}
        for name, nodes in zip(graph.names, graph.after, strict=True)
        if nodes
    }


BODY = f"""%body (p: (f32[8], f32[8])) -> (f32[8], f32[8]) {{
  %p = ({X}, {X}) parameter(0)
  %one = {X} get-tuple-element(%p), index=0
  %two = {X} get-tuple-element(%p), index=1
  %inner = {X} negate(%one)
  %new = {X} add(%inner, %two)
  ROOT %next = ({X}, {X}) tuple(%new, %two)
}}

%condition (q: (f32[8], f32[8])) -> pred[] {{
  %q = ({X}, {X}) parameter(0)
  ROOT %go = pred[] constant(true)
}}
"""
LOOP = f"""
  %x = {X} parameter(0)
  %a = {X} negate(%x)
  %b = {X} sine(%x)
  %t = ({X}, {X}) tuple(%a, %b)
  %w = ({X}, {X}) while(%t), condition=%condition, body=%body
  %r = {X} get-tuple-element(%w), index=0
  ROOT %c = {X} cosine(%r)
"""
LOOP_MEMORY: dict[str, Place] = {
    "x": 0, "a": (1, 0), "b": (1, 32), "w{0}": (1, 0), "w{1}": (1, 32), "new": (1, 0),
    "inner": (1, 64), "c": 2,
}  # fmt: skip
LOOP_MEMORY_OUTSIDE = {
    name: place for name, place in LOOP_MEMORY.items() if name not in ("new", "inner")
}
LOOP_PLAN = plan_of(LOOP, LOOP_MEMORY, BODY, kinds={0: PARAMETER, 2: LIVE})


def test_a_carry_is_one_buffer_up_to_its_last_reader() -> None:
    graph = graph_of(LOOP_PLAN)
    buffers = named(graph)
    assert set(buffers) == {"a", "b"}
    assert buffers["a"][0] == buffers["b"][0] == 32
    assert {"a", "w", "c"} <= set(buffers["a"][1])
    assert {"b", "w"} <= set(buffers["b"][1])
    assert "c" not in buffers["b"][1]
    # The body has a value more; the others are the caller's.
    assert LOOP_PLAN.module is not None
    graphs = TempGraphs(LOOP_PLAN, LOOP_PLAN.module)
    loop = LOOP_PLAN.instructions["w"]
    body = graphs.graph(LOOP_PLAN.module.computations["body"], graphs.results_of(loop))
    assert named(body) == {"inner": (32, ["inner", "new"])}


def test_what_a_loop_needs_beside_its_carry_is_counted_once() -> None:
    share = order_share(LOOP_PLAN)
    assert share is not None
    assert share.planned_bytes == share.least_bytes == 3 * 32
    assert share.held_bytes == 0


def test_memory_of_a_carry_that_a_loop_reuses_is_counted_once() -> None:
    memory = {**LOOP_MEMORY, "inner": (1, 48)}
    share = order_share(plan_of(LOOP, memory, BODY, kinds={0: PARAMETER, 2: LIVE}))
    assert share is not None
    assert share.planned_bytes == 2 * 32 + 16


def test_memory_outside_temp_keeps_the_sequence_of_its_values() -> None:
    """b is written over a's bytes in the output's memory, so a's reader comes first."""
    entry = f"""
  %x = {X} parameter(0)
  %a = {X} negate(%x)
  %c = {X} cosine(%a)
  %b = {X} sine(%x)
  ROOT %d = {X} add(%b, %c)
"""
    memory: dict[str, Place] = {"x": 0, "a": 1, "b": 1, "c": 2, "d": 2}
    outside = graph_of(plan_of(entry, memory, kinds={0: PARAMETER, 1: LIVE}))
    assert after(outside) == {"c": {"a"}, "b": {"a", "c"}, "d": {"b", "c"}, "a": {"x"}} | {
        "b": {"a", "c", "x"}
    }
    # In temp, another order may use other memory.
    inside = graph_of(plan_of(entry, memory, kinds={0: PARAMETER}))
    assert after(inside)["b"] == {"x"}
    # c and d are one buffer, since d is written over its operand.
    assert named(inside)["c"] == (32, ["c", "d"])
    assert set(named(inside)) == {"a", "b", "c"}


@pytest.mark.parametrize("all_pairs", [0, 64])
def test_disjoint_bytes_outside_temp_keep_no_sequence(
    all_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temp_graph, "_ALL_PAIRS", all_pairs)
    entry = f"""
  %x = {X} parameter(0)
  %a = {X} negate(%x)
  %c = {X} cosine(%a)
  %b = {X} sine(%x)
  ROOT %d = {X} add(%b, %c)
"""
    for first, second, apart in ((0, 32, True), (32, 0, True), (0, 31, False), (31, 0, False)):
        memory: dict[str, Place] = {"x": 0, "a": (1, first), "b": (1, second), "c": 2, "d": 2}
        graph = graph_of(plan_of(entry, memory, kinds={0: PARAMETER, 1: LIVE, 2: LIVE}))
        assert after(graph)["b"] == ({"x"} if apart else {"x", "a", "c"})


@pytest.mark.parametrize(
    "kind", [TEMP, LIVE, PARAMETER, AllocationKind.CONSTANT, AllocationKind.THREAD_LOCAL]
)
def test_only_temp_is_counted(kind: AllocationKind) -> None:
    entry = f"""
  %x = {X} parameter(0)
  %a = {X} negate(%x)
  ROOT %c = {X} cosine(%a)
"""
    graph = graph_of(
        plan_of(entry, {"x": 0, "a": 1, "c": 2}, kinds={0: PARAMETER, 1: kind, 2: LIVE})
    )
    assert ("a" in named(graph)) is (kind is TEMP)


def structure(entry: str, memory: dict[str, Place], *computations: str) -> ValueStructure:
    plan = plan_of(entry, memory, *computations)
    assert plan.module is not None
    return ValueStructure(plan, plan.module)


def test_values_of_results_across_tuples_and_calls() -> None:
    called = f"""%two (y: f32[8]) -> (f32[8], f32[8]) {{
  %y = {X} parameter(0)
  %m = {X} negate(%y)
  %n = {X} sine(%y)
  ROOT %both = ({X}, {X}) tuple(%m, %n)
}}
"""
    values = structure(
        f"""
  %x = {X} parameter(0)
  %a = {X} cosine(%x)
  %t = ({X}, {X}) tuple(%a, %x)
  %u = (({X}, {X}), {X}) tuple(%t, %a)
  %s = (({X}), ({X}, {X})) async-start(%a), calls=%two
  %d = ({X}, {X}) async-done(%s)
  %e = ({X}, {X}) call(%a), to_apply=%two
  %g = ({X}, {X}, u32[]) copy-start(%a)
  %h = {X} copy-done(%g)
  %second = {X} get-tuple-element(%d), index=1
  %inner = ({X}, {X}) get-tuple-element(%u), index=0
  %l = ({X}, {X}) tuple(%inner, %second)
  ROOT %k = {X} negate(%second)
""",
        {"x": 0, "a": 1, "m": 2, "n": 3, "g{0}": 4, "k": 5},
        called,
    )
    assert values.of("t") == {(0,): "a", (1,): "x"}
    assert values.of("u") == {(0, 0): "a", (0, 1): "x", (1,): "a"}
    assert values.of("s") == {(0, 0): "a", (1, 0): "m", (1, 1): "n"}
    assert values.of("d") == {(0,): "m", (1,): "n"}
    assert values.of("e") == {(0,): "m", (1,): "n"}
    assert values.of("g") == {(0,): "g{0}"}
    assert values.of("h") == {(): "g{0}"}
    # An element that is a tuple itself.
    assert values.of("l") == {(0, 0): "a", (0, 1): "x", (1,): "n"}
    assert values.own("u") == {}


def test_values_that_a_loop_defines_and_hands_on() -> None:
    assert LOOP_PLAN.module is not None
    values = ValueStructure(LOOP_PLAN, LOOP_PLAN.module)
    assert values.of("w") == {(0,): "w{0}", (1,): "w{1}"}
    assert values.of("t") == {(0,): "a", (1,): "b"}


def test_a_loop_that_defines_no_values_hands_on_what_it_starts_with() -> None:
    memory = {name: place for name, place in LOOP_MEMORY.items() if not name.startswith("w{")}
    values = structure(LOOP, memory, BODY)
    assert values.of("w") == {(0,): "a", (1,): "b"}


def test_a_value_made_inside_a_call_in_a_call_is_written_by_the_outer_one() -> None:
    inner = f"""%inner (z: f32[8]) -> f32[8] {{
  %z = {X} parameter(0)
  ROOT %m = {X} negate(%z)
}}
"""
    outer = f"""%outer (y: f32[8]) -> f32[8] {{
  %y = {X} parameter(0)
  ROOT %i = {X} call(%y), to_apply=%inner
}}
"""
    entry = f"""
  %x = {X} parameter(0)
  %o = {X} call(%x), to_apply=%outer
  ROOT %k = {X} sine(%o)
"""
    plan = plan_of(entry, {"x": 0, "m": 1, "k": 2}, inner, outer, kinds={0: PARAMETER, 2: LIVE})
    assert named(graph_of(plan)) == {"m": (32, ["o", "k"])}


def test_a_loop_whose_computations_are_missing_needs_its_carry() -> None:
    share = order_share(plan_of(LOOP, LOOP_MEMORY_OUTSIDE, kinds={0: PARAMETER, 2: LIVE}))
    assert share is not None
    assert (share.planned_bytes, share.bound_bytes) == (64, 64)
    # Nor is the source line of a value known.
    assert share.planned_by_source == {"unknown": 64}


# Two values of 100 and one of 10, each made from the first and reduced before the last: an order
# that reduces each directly holds one of 100 at a time.
GRAPH = TempGraph(
    ("first", "a", "b", "c", "ra", "rb", "rc", "last"),
    tuple(map(frozenset, ((), (0,), (0,), (0,), (1,), (2,), (3,), (4, 5, 6)))),
    (
        TempBuffer("a", 100, 0, (1, 4)),
        TempBuffer("b", 100, 0, (2, 5)),
        TempBuffer("c", 10, 0, (3, 6)),
        TempBuffer("ra", 1, 0, (4, 7)),
        TempBuffer("rb", 1, 0, (5, 7)),
        TempBuffer("rc", 1, 0, (6, 7)),
    ),
)


def test_orders_that_are_tried() -> None:
    run = _Run(GRAPH, {})
    assert list(run.xlas_order()) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert list(run.list_order()) == [0, 3, 6, 1, 4, 2, 5, 7]
    assert list(run.reverse_list_order()) == [0, 2, 5, 1, 4, 3, 6, 7]
    assert list(run.depth_first_order()) == [0, 1, 4, 2, 5, 3, 6, 7]
    peaks = [run.peaks(order).peak_bytes for order in run.orders()]
    assert peaks == [211, 103, 102, 102]
    assert all(order_is_valid(GRAPH, order) for order in run.orders())
    assert run.bound({}) == 101
    assert run.bound({0: 500, 1: 2}) == 500


def test_an_order_lists_each_instruction_once_and_after_what_it_needs() -> None:
    assert not order_is_valid(GRAPH, [0, 1, 2, 3, 4, 5, 6])
    assert not order_is_valid(GRAPH, [0, 1, 2, 3, 4, 5, 6, 7, 7])
    assert not order_is_valid(GRAPH, [1, 0, 2, 3, 4, 5, 6, 7])


def test_peaks_of_memory_spaces_add_up() -> None:
    graph = replace(GRAPH, buffers=tuple(replace(b, color=b.name == "c") for b in GRAPH.buffers))
    run = _Run(graph, {})
    peaks = run.peaks(run.xlas_order())
    assert {color: peak.peak_bytes for color, peak in peaks.by_color.items()} == {0: 201, 1: 10}
    assert peaks.by_color[0].buffers == {"a": 100, "b": 100, "ra": 1}
    assert peaks.peak_bytes == 211


def test_of_equally_full_moments_the_first_is_listed() -> None:
    graph = TempGraph(
        ("a", "b"),
        (frozenset(), frozenset()),
        (TempBuffer("one", 100, 0, (0,)), TempBuffer("two", 100, 0, (1,))),
    )
    run = _Run(graph, {})
    assert run.peaks([0, 1]).by_color[0].buffers == {"one": 100}
    assert run.peaks([1, 0]).by_color[0].buffers == {"two": 100}


def test_what_an_instruction_runs_is_held_beside_what_is_alive() -> None:
    inner = {2: _Peaks({0: _Peak(50, {"inner": 50})}), 3: _Peaks({4: _Peak(7, {"other": 7})})}
    run = _Run(GRAPH, inner)
    peaks = run.peaks(run.xlas_order())
    assert {color: peak.peak_bytes for color, peak in peaks.by_color.items()} == {0: 250, 4: 7}
    assert peaks.by_color[0].buffers == {"a": 100, "b": 100, "inner": 50}
    fuller = _Peaks({0: _Peak(1), 1: _Peak(5)}).at_least(_Peaks({0: _Peak(2), 2: _Peak(3)}))
    assert {color: peak.peak_bytes for color, peak in fuller.by_color.items()} == {0: 2, 1: 5, 2: 3}
