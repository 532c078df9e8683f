"""Gathered values and the bytes that they take, on small programs."""

import pytest

from tests.shared.small_hlo import Place, plan_of_text
from xlapipe.expect.gathered import GatheredValue, gathered_values, most_alive

X, WIDE = "f32[4]{0}", "f32[8]{0}"
GROUPS = "replica_groups={{0,1}}, dimensions={0}"


def gathered(
    entry: str,
    memory: dict[str, Place],
    alive: dict[str, tuple[int, int]],
    *computations: str,
) -> dict[str, GatheredValue]:
    text = "\n".join(
        ("HloModule m, is_scheduled=true\n", *computations, "ENTRY %main (x: f32[4]) -> f32[8] {")
    )
    values = gathered_values(plan_of_text(f"{text}{entry}}}\n", memory, alive))
    assert values is not None
    return {value.value.name: value for value in values}


def test_a_value_moved_from_a_gathered_one_is_gathered_and_a_computed_one_is_not() -> None:
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %g = {WIDE} all-gather(%x), {GROUPS}
  %r = {WIDE} reverse(%g), dimensions={{0}}
  %n = {WIDE} negate(%g)
  %q = {WIDE} reverse(%n), dimensions={{0}}
  ROOT %s = {WIDE} add(%r, %q)
""",
        {"x": 0, "g": 1, "r": 2, "n": 3, "q": 4, "s": 5},
        {"x": (0, 6), "g": (1, 3), "r": (2, 5), "n": (3, 4), "q": (4, 5), "s": (5, 6)},
    )
    assert {name: (value.start, value.end) for name, value in values.items()} == {
        "g": (1, 3),
        "r": (2, 5),
    }
    assert values["g"].ends_at == "n"
    # Its last reader computes the program's result.
    assert values["r"].ends_at == "s"
    assert not values["r"].is_output


def test_only_the_element_that_is_gathered_and_moved_counts() -> None:
    """A tuple of a gathered and a computed value, of which both elements are copied."""
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %g = ({WIDE}, f32[16]{{0}}) all-gather(%x, %x), {GROUPS}
  %one = f32[16]{{0}} get-tuple-element(%g), index=1
  %n = f32[16]{{0}} negate(%one)
  %t = ({WIDE}, f32[16]{{0}}) tuple(%n, %one)
  %o = ({WIDE}, f32[16]{{0}}) opt-barrier(%t)
  %first = f32[16]{{0}} get-tuple-element(%o), index=0
  %second = f32[16]{{0}} get-tuple-element(%o), index=1
  %c = f32[16]{{0}} copy(%first)
  %d = f32[16]{{0}} copy(%second)
  ROOT %s = f32[16]{{0}} add(%c, %d)
""",
        {"g{0}": 1, "g{1}": 2, "n": 3, "c": 4, "d": 5},
        {"g{0}": (1, 1), "g{1}": (1, 7), "n": (2, 6), "c": (5, 7), "d": (6, 7)},
    )
    assert sorted(values) == ["d", "g{0}", "g{1}"]


def test_an_asynchronous_gather_gives_the_result_of_its_start() -> None:
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %s = ({X}, {WIDE}) all-gather-start(%x), {GROUPS}
  %d = {WIDE} all-gather-done(%s)
  ROOT %r = {WIDE} reverse(%d), dimensions={{0}}
""",
        {"s": 0, "s{1}": 1, "r": 2},
        {"s": (1, 2), "s{1}": (1, 3), "r": (3, 4)},
    )
    assert sorted(values) == ["r", "s{1}"]
    # Alive after the last instruction.
    assert (values["r"].ends_at, values["r"].is_output) == (None, True)
    assert (values["s{1}"].ends_at, values["s{1}"].is_output) == ("r", False)


def test_a_combined_gather_gives_each_of_its_results() -> None:
    """XLA combines gathers: the start has all operands and then all results."""
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %y = {WIDE} parameter(1)
  %s = (({X}, {WIDE}), ({WIDE}, f32[16]{{0}})) all-gather-start(%x, %y), {GROUPS}
  %d = ({WIDE}, f32[16]{{0}}) all-gather-done(%s)
  %first = {WIDE} get-tuple-element(%d), index=0
  %second = f32[16]{{0}} get-tuple-element(%d), index=1
  %n = {WIDE} negate(%first)
  %r = f32[16]{{0}} reverse(%second), dimensions={{0}}
  ROOT %t = ({WIDE}, f32[16]{{0}}) tuple(%n, %r)
""",
        {"s{1,0}": 1, "s{1,1}": 2, "n": 3, "r": 4},
        {"s{1,0}": (2, 4), "s{1,1}": (2, 5), "n": (4, 7), "r": (5, 7)},
    )
    assert sorted(values) == ["r", "s{1,0}", "s{1,1}"]


def test_a_value_that_ends_at_a_root_that_computes_nothing_is_an_output() -> None:
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %g = {WIDE} all-gather(%x), {GROUPS}
  ROOT %t = ({WIDE}) tuple(%g)
""",
        {"g": 1},
        {"g": (1, 2)},
    )
    assert values["g"].is_output


def test_a_copy_that_runs_beside_other_kernels_is_gathered() -> None:
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %g = {WIDE} all-gather(%x), {GROUPS}
  %s = (({WIDE}), {WIDE}) async-start(%g), calls=%wrapped
  %e = {WIDE} async-done(%s)
  %q = {WIDE} reverse(%e), dimensions={{0}}
  ROOT %n = {WIDE} negate(%q)
""",
        {"g": 1, "moved": 2, "s{1}": 2, "q": 3},
        {"g": (1, 3), "s{1}": (2, 4), "moved": (2, 4), "q": (4, 5)},
        f"""%wrapped (y: f32[8]) -> f32[8] {{
  %y = {WIDE} parameter(0)
  ROOT %moved = {WIDE} reverse(%y), dimensions={{0}}
}}
""",
    )
    assert sorted(values) == ["g", "moved", "q"]


@pytest.mark.parametrize(
    ("start", "names"),
    # At 4, the loop's value begins where the copy ends; at 5, another may have been there.
    [(4, ["c", "g", "w{1}"]), (5, ["c", "g"])],
)
def test_a_gathered_value_stays_in_place_in_a_loop(start: int, names: list[str]) -> None:
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %n = s32[] parameter(1)
  %g = {WIDE} all-gather(%x), {GROUPS}
  %c = {WIDE} reverse(%g), dimensions={{0}}
  %t = (s32[], {WIDE}) tuple(%n, %c)
  %w = (s32[], {WIDE}) while(%t), condition=%condition, body=%body
  %r = {WIDE} get-tuple-element(%w), index=1
  %k = {WIDE} negate(%r)
  ROOT %z = {WIDE} negate(%k)
""",
        {"g": 1, "c": 2, "w{0}": 5, "w{1}": 2, "k": 2},
        {"g": (2, 3), "c": (3, 4), "w{0}": (4, 6), "w{1}": (start, 6), "k": (6, 7)},
        f"""%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  ROOT %p = (s32[], {WIDE}) parameter(0)
}}

%condition (q: (s32[], f32[8])) -> pred[] {{
  %q = (s32[], {WIDE}) parameter(0)
  ROOT %go = pred[] constant(true)
}}
""",
    )
    assert sorted(values) == names


def test_the_most_bytes_alive_count_shared_bytes_once() -> None:
    memory: dict[str, Place] = {"g": (1, 0), "h": (1, 16), "i": (2, 0), "j": (2, 64), "k": (3, 0)}
    values = gathered(
        f"""
  %x = {X} parameter(0)
  %g = {WIDE} all-gather(%x), {GROUPS}
  %h = {WIDE} all-gather(%x), {GROUPS}
  %i = {WIDE} all-gather(%x), {GROUPS}
  %j = {WIDE} all-gather(%x), {GROUPS}
  %k = {WIDE} all-gather(%x), {GROUPS}
  ROOT %s = {WIDE} negate(%k)
""",
        memory,
        {"g": (1, 3), "h": (2, 3), "i": (3, 3), "j": (4, 5), "k": (5, 6)},
    )
    # At position 3: 16 of the 32 bytes of h are those of g.
    most_bytes, alive = most_alive(tuple(values.values()))
    assert most_bytes == 32 + 16 + 32
    assert [value.value.name for value in alive] == ["g", "h", "i"]
    # The first of several positions counts; j and k are in different allocations.
    most_bytes, alive = most_alive((values["j"], values["k"]))
    assert (most_bytes, len(alive)) == (64, 2)
    assert most_alive((values["g"], values["k"])) == (32, (values["g"],))
    assert most_alive(()) == (0, ())
