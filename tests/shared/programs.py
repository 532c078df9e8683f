"""Programs with facts, for tests that compile nothing."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from xlapipe.plans.plan import Plan
from xlapipe.plans.program import Program

AnyProgram = TypeVar("AnyProgram", bound=Program)


def program_of(plan: Plan, **given: Any) -> Program:
    """A program with these fields of `Program` and of its facts."""
    return with_facts(Program(plan), **given)


def with_facts(program: AnyProgram, **given: Any) -> AnyProgram:
    """The program with other fields and facts."""
    own = {name: given.pop(name) for name in {item.name for item in fields(program)} & set(given)}
    return replace(program, **own, facts=replace(program.facts, **given))
