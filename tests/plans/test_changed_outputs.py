"""The advice names the output whose type changed, also for leaves that JAX paired differently."""

from tests.shared.programs import program_of
from xlapipe.plans import InputOutputAlias, Plan
from xlapipe.plans.changed_outputs import ChangedOutputs
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program

ROWS = (8, 128)


def program(
    arguments: tuple[str, ...], outputs: dict[str, str], aliases: dict[int, int]
) -> Program:
    """Donated bfloat16 arguments, outputs by dtype, and aliases from output to parameter."""
    return program_of(
        Plan(
            (),
            header_aliases=tuple(
                InputOutputAlias(parameter, (output,)) for output, parameter in aliases.items()
            ),
        ),
        arguments=tuple(
            ArgumentLeaf(path, ROWS, "bfloat16", 2048, True, number)
            for number, path in enumerate(arguments)
        ),
        outputs=tuple(
            OutputLeaf(path, ROWS, dtype, 2048, index)
            for index, (path, dtype) in enumerate(outputs.items())
        ),
    )


def advice(program: Program, number: int) -> str:
    leaf = program.arguments[number]
    paths = {alias.parameter_number: alias.output_index for alias in program.plan.aliases}
    aliased = program.output_path(paths[number]) if number in paths else None
    return ChangedOutputs(program).advice(leaf, aliased)


CACHE = program(
    ("cache[0]['k']", "cache[0]['v']", "cache[1]['v']"),
    {"out[0]": "bfloat16", "out[1][0]['k']": "float32", "out[1][0]['v']": "bfloat16"}
    | {"out[1][1]['v']": "bfloat16"},
    {2: 0, 3: 1},
)


def test_the_changed_output_is_named_for_its_leaf():
    assert advice(CACHE, 0) == (
        "return out[1][0]['k'], now float32[8, 128], as bfloat16[8, 128] like cache[0]['k']: "
        "jax pairs donated leaves with outputs by shape and dtype, in order"
    )


def test_the_changed_output_is_named_for_leaves_that_lost_their_output_to_another():
    assert advice(CACHE, 1) == advice(CACHE, 2) == advice(CACHE, 0)


def test_a_leaf_with_its_own_output_gets_no_advice():
    kept = program(("cache['k']",), {"out[0]['k']": "bfloat16"}, {0: 0})
    assert advice(kept, 0) == ""
    changed = program(("cache['k']",), {"out[0]['k']": "float32"}, {0: 0})
    assert advice(changed, 0) == ""
    assert advice(program(("cache['k']",), {"out[0]['k']": "float32"}, {}), 0) != ""


def test_two_leaves_with_each_other_s_output_end_without_advice():
    swapped = program(
        ("cache['k']", "cache['v']", "cache['w']"),
        {"out[0]['k']": "bfloat16", "out[0]['v']": "bfloat16", "out[0]['w']": "bfloat16"},
        {0: 1, 1: 0, 2: 2},
    )
    assert advice(swapped, 0) == ""


def test_an_output_of_the_right_type_that_no_leaf_has_is_no_reason():
    unowned = program(
        ("cache['k']", "cache['v']"),
        {"out[0]['k']": "bfloat16", "out[0]['v']": "bfloat16"},
        {1: 0},
    )
    assert advice(unowned, 0) == ""


def test_of_several_outputs_with_its_name_the_shortest_path_is_meant():
    trained = program(
        ("params['w']",),
        {"out[1].mu['w']": "bfloat16", "out[0]['w']": "float32"},
        {},
    )
    assert advice(trained, 0).startswith("return out[0]['w'], now float32")


def test_positions_alone_do_not_choose_between_outputs():
    carry = program(("carry[0]",), {"out[0][0]": "float32", "out[1][2][0]": "bfloat16"}, {})
    assert advice(carry, 0) == ""
    # With a name, the shorter path does.
    named = program(("carry['k']",), {"out[0]['k']": "float32", "out[1][2]['k']": "bfloat16"}, {})
    assert advice(named, 0).startswith("return out[0]['k'], now float32")
    # One is enough, also if it is an attribute's.
    carry = program(("carry[0]",), {"out[0].x": "bfloat16", "out[1][0]": "float32"}, {})
    assert advice(carry, 0).startswith("return out[1][0], now float32")
    state = program(("state.mu",), {"out[0].mu": "float32", "out[0].nu": "bfloat16"}, {})
    assert advice(state, 0).startswith("return out[0].mu, now float32")
    # An output with the leaf's keys and no more is the whole result, not a part of it.
    assert advice(program(("carry[0]",), {"out[0]": "float32"}, {}), 0) == ""


def test_of_several_outputs_with_equally_long_paths_none_is_meant():
    twins = program(("w['a']",), {"out[0]['a']": "float32", "out[1]['a']": "float32"}, {})
    assert advice(twins, 0) == ""
