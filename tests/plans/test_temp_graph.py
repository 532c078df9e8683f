"""Which values share memory, and which orders of instructions are tried, on small programs."""

from dataclasses import replace

import pytest

from tests.shared.small_hlo import Place, order_is_valid, plan_of_text
from xlapipe.plans import AllocationKind, Plan
from xlapipe.plans.dataflow import Value
from xlapipe.plans.temp_order.instruction_order import (
    bound_bytes,
    depth_first_order,
    fuller,
    list_order,
    order_share,
    orders,
    peaks_of,
    total_bytes,
)
from xlapipe.plans.temp_order.temp_graph import TempBuffer, TempGraph, TempGraphs

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
    return TempGraphs(plan, plan.module).graph(plan.module.computations[name], ())


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
    around = graphs.values_around(LOOP_PLAN.module.computations["main"], loop)
    body = graphs.graph(LOOP_PLAN.module.computations["body"], around)
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


def test_disjoint_bytes_outside_temp_keep_no_sequence() -> None:
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


def values_of(plan: Plan, name: str) -> set[str]:
    """The values that the result of an instruction of the entry consists of."""
    assert plan.module is not None
    assert plan.entry is not None
    value = Value(plan.entry, plan.instructions[name])
    return set(TempGraphs(plan, plan.module).values_of(value))


def test_values_of_results_across_tuples_and_calls() -> None:
    called = f"""%two (y: f32[8]) -> (f32[8], f32[8]) {{
  %y = {X} parameter(0)
  %m = {X} negate(%y)
  %n = {X} sine(%y)
  ROOT %both = ({X}, {X}) tuple(%m, %n)
}}
"""
    plan = plan_of(
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
  %l = (({X}, {X}), {X}) tuple(%inner, %second)
  ROOT %k = {X} negate(%second)
""",
        {"x": 0, "a": 1, "m": 2, "n": 3, "g{0}": 4, "k": 5},
        called,
    )
    assert values_of(plan, "t") == {"a", "x"}
    assert values_of(plan, "u") == {"a", "x"}
    assert values_of(plan, "s") == {"a", "m", "n"}
    assert values_of(plan, "d") == {"m", "n"}
    assert values_of(plan, "e") == {"m", "n"}
    assert values_of(plan, "g") == {"g{0}"}
    assert values_of(plan, "h") == {"g{0}"}
    # An element that is a tuple itself.
    assert values_of(plan, "l") == {"a", "n", "x"}


def test_values_that_a_loop_defines_and_hands_on() -> None:
    assert values_of(LOOP_PLAN, "w") == {"w{0}", "w{1}"}
    assert values_of(LOOP_PLAN, "t") == {"a", "b"}


def test_a_loop_that_defines_no_values_hands_on_what_it_starts_with() -> None:
    memory = {name: place for name, place in LOOP_MEMORY.items() if not name.startswith("w{")}
    plan = plan_of(LOOP, memory, BODY)
    assert values_of(plan, "w") == {"a", "b"}


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
    assert list_order(GRAPH, GRAPH.after) == [0, 3, 6, 1, 4, 2, 5, 7]
    assert list_order(GRAPH, GRAPH.before)[::-1] == [0, 2, 5, 1, 4, 3, 6, 7]
    assert depth_first_order(GRAPH) == [0, 1, 4, 2, 5, 3, 6, 7]
    tried = list(orders(GRAPH))
    assert list(tried[0]) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [total_bytes(peaks_of(GRAPH, order, {})) for order in tried] == [211, 103, 102, 102]
    assert all(order_is_valid(GRAPH, order) for order in tried)
    assert bound_bytes(GRAPH, {}) == 101
    assert bound_bytes(GRAPH, {0: 500, 1: 2}) == 500


def test_peaks_of_memory_spaces_add_up() -> None:
    graph = replace(GRAPH, buffers=tuple(replace(b, color=b.name == "c") for b in GRAPH.buffers))
    peaks = peaks_of(graph, range(8), {})
    assert peaks == {0: {"a": 100, "b": 100, "ra": 1}, 1: {"c": 10}}
    assert total_bytes(peaks) == 211


def test_of_equally_full_moments_the_first_is_listed() -> None:
    graph = TempGraph(
        ("a", "b"),
        (frozenset(), frozenset()),
        (TempBuffer("one", 100, 0, (0,)), TempBuffer("two", 100, 0, (1,))),
    )
    assert peaks_of(graph, [0, 1], {}) == {0: {"one": 100}}
    assert peaks_of(graph, [1, 0], {}) == {0: {"two": 100}}


def test_what_an_instruction_runs_is_held_beside_what_is_alive() -> None:
    peaks = peaks_of(GRAPH, range(8), {2: {0: {"inner": 50}}, 3: {4: {"other": 7}}})
    assert peaks == {0: {"a": 100, "b": 100, "inner": 50}, 4: {"other": 7}}
    both = fuller({0: {"x": 1}, 1: {"y": 5}}, {0: {"z": 2}, 2: {"w": 3}})
    assert both == {0: {"z": 2}, 1: {"y": 5}, 2: {"w": 3}}
