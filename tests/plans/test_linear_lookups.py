"""Lookups that grow linearly give what a search through everything gives, on random programs."""

import random
import re
from itertools import takewhile

import pytest

from tests.shared.programs import program_of
from xlapipe.plans import InputOutputAlias, Plan
from xlapipe.plans.changed_outputs import ChangedOutputs, LikelyOutputs
from xlapipe.plans.once import once_per_object
from xlapipe.plans.plan import nearest_sources
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program

SEEDS = range(25)


def nearest_by_search(name, own, neighbours, ends):
    pending, seen = [name], {name}
    while pending:
        current = pending.pop(0)
        if current in own:
            return current
        for other in neighbours.get(current, ()) if current not in ends else ():
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_nearest_source_is_the_one_that_a_search_from_the_instruction_finds(seed: int):
    rng = random.Random(seed)
    names = [f"i{number}" for number in range(rng.randrange(1, 40))]
    operands = {name: tuple(rng.choices(names, k=rng.randrange(4))) for name in names}
    users: dict[str, list[str]] = {}
    for name, read in operands.items():
        for operand in read:
            users.setdefault(operand, []).append(name)
    own = [name for name in names if rng.random() < 0.2]
    ends = {name for name in names if rng.random() < 0.2}
    for neighbours, back in ((users, operands), (operands, users)):
        lines = nearest_sources(own, neighbours, back, ends=ends)
        for name in names:
            assert lines.get(name) == nearest_by_search(name, own, neighbours, ends)


def random_path(rng: random.Random) -> str:
    return rng.choice("ab") + "".join(rng.choices(("['a']", "['b']", "[0]", ".c"), k=3))


def keys(path: str) -> list[str]:
    return re.findall(r"^\w+|\[[^\]]*\]|(?<=\.)\w+", path)


def likest_by_search(outputs, leaf):
    def likeness(output):
        pairs = zip(keys(output.path)[::-1], keys(leaf.path)[::-1], strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

    same = [output for output in outputs if output.shape == leaf.shape]
    return max(same, key=likeness, default=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_likest_output_has_most_equal_keys_at_its_end(seed: int):
    rng = random.Random(seed)
    outputs = [
        OutputLeaf(random_path(rng), (rng.randrange(2),), "float32", 4, index)
        for index in range(rng.randrange(20))
    ]
    likely = LikelyOutputs(outputs, lambda leaf: leaf.shape)
    for _ in range(20):
        leaf = ArgumentLeaf(random_path(rng), (rng.randrange(3),), "float32", 4, True, 0)
        assert likely.like(leaf) is likest_by_search(outputs, leaf)
        assert likely.count(leaf) == sum(output.shape == leaf.shape for output in outputs)


def changed_by_search(program: Program, leaf: ArgumentLeaf, aliased: str | None) -> str | None:
    """Path of the output that the advice names, found by looking at every output for every leaf."""

    def keys(path: str) -> list[str]:
        return re.findall(r"\[[^\]]*\]|\.\w+", path)

    seen: set[str] = set()
    while leaf.path not in seen:
        seen.add(leaf.path)
        own = keys(leaf.path)
        ending = [o for o in program.outputs if own and keys(o.path)[-len(own) :] == own]
        longer = [o for o in ending if len(keys(o.path)) > len(own)]
        if all(key[1:-1].isdigit() for key in own) and len(longer) > 1:
            return None
        least = min((len(keys(o.path)) for o in longer), default=0)
        shortest = [o for o in longer if len(keys(o.path)) == least]
        if len(shortest) != 1 or shortest[0].path == aliased:
            return None
        if shortest[0].dtype != leaf.dtype:
            return shortest[0].path
        owners = [
            argument
            for alias in program.plan.aliases
            for argument in program.arguments
            if program.output_path(alias.output_index) == shortest[0].path
            and argument.parameter_number == alias.parameter_number
        ]
        if not owners:
            return None
        leaf, aliased = owners[-1], None
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_changed_output_is_found_over_leaves_that_took_the_output_of_another(seed: int):
    rng = random.Random(seed)
    count = rng.randrange(2, 12)
    owned = dict(
        zip(rng.sample(range(count), count - 1), rng.sample(range(count), count - 1), strict=True)
    )
    program = program_of(
        Plan(
            (),
            header_aliases=tuple(
                InputOutputAlias(parameter, (output,)) for output, parameter in owned.items()
            ),
        ),
        arguments=tuple(
            ArgumentLeaf(f"params['w{number}']", (2,), "float32", 8, True, number)
            for number in range(count)
        ),
        outputs=tuple(
            OutputLeaf(f"out[1]['w{n}']", (2,), rng.choice(["float32"] * 9 + ["int32"]), 8, n)
            for n in range(count)
        ),
    )
    outputs = ChangedOutputs(program)
    for leaf in rng.sample(program.arguments, count):
        aliased = rng.choice([None, *(output.path for output in program.outputs)])
        advice = outputs.advice(leaf, aliased)
        changed = changed_by_search(program, leaf, aliased)
        named = re.match(r"return (\S+), now", advice)
        assert (named[1] if named else None) == changed


def test_a_result_is_computed_once_for_each_object():
    computed = []

    @once_per_object
    def size(plan: Plan) -> int:
        computed.append(plan)
        return len(computed)

    one, other = Plan(()), Plan(())
    assert (size(one), size(one), size(other), size(one)) == (1, 1, 2, 1)
    assert one == other
