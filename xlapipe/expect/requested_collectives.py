"""Expectations of the collectives that a program asks for, and of those that came to nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.expect.collectives import describe, no_module, of_kind, wrong_kind
from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.gemms import within_differentiated
from xlapipe.plan.collectives import Collective
from xlapipe.plan.program import Program, RequestedCollective


@dataclass(frozen=True)
class CollectivesAskedFor(Expectation):
    """The traced program asks for exactly `count` collectives of XLA's `kind`.

    As the author wrote it, before jax and XLA drop or merge any; one of a tree counts for each
    primitive that jax makes of it. What sharding alone brings about is not asked for.
    """

    count: int
    kind: str

    def check(self, program: Program) -> Finding:
        requested = program.requested_collectives
        if requested is None:
            return self.finding("unknown", _no_record())
        if (wrong := wrong_kind(self.kind)) is not None:
            return self.finding("unknown", wrong)
        found = [each for each in requested if each.kind == self.kind]
        if len(found) == self.count:
            return self.finding(f"{len(found)}")
        return self.finding(
            f"{len(found)}",
            Violation(
                f"{self.count} × {self.kind} in the traced program",
                f"{len(found)}" + (f", the last {found[-1].op_name}" if found else ""),
                source=found[-1].source if found else None,
                advice="the model and its expectations disagree: change one of them",
            ),
        )


@dataclass(frozen=True)
class DeadCollective(Expectation):
    """Collectives of `kind` are asked for in the name scope `scope`, and none is compiled.

    That is, jax or XLA found that nothing reads their results. `scope` is a `jax.named_scope`, as
    it stands or in the `jvp(…)` and `transpose(…)` of autodiff.
    """

    kind: str
    scope: str

    def check(self, program: Program) -> Finding:
        collectives, requested = program.plan.collectives, program.requested_collectives
        if collectives is None or requested is None:
            return self.finding("unknown", no_module() if requested is not None else _no_record())
        asked = [each for each in requested if self._is_meant(each)]
        alive = [
            each
            for each in of_kind(collectives, self.kind)
            if any(within_differentiated(self.scope, scope) for scope in each.scopes)
        ]
        violations = [self._not_asked(requested)] if not asked else []
        violations += [
            Violation(
                f"no {self.kind} in {self.scope} after optimisation",
                f"{each.kind} {each.instruction}",
                describe(each),
                each.source or asked[0].source if asked else each.source,
                "something reads its result: look for a use that was not meant",
            )
            for each in alive
        ]
        if asked and not alive:
            violations += self._cannot_tell(of_kind(collectives, self.kind), requested, len(asked))
        return self.finding(f"{len(asked)} asked for, {len(alive)} compiled", *violations)

    def _is_meant(self, each: RequestedCollective) -> bool:
        return each.kind == self.kind and within_differentiated(self.scope, each.op_name)

    def _not_asked(self, requested: Sequence[RequestedCollective]) -> Violation:
        others = [each.op_name for each in requested if each.kind == self.kind]
        return Violation(
            f"the program to ask for {self.kind} in the scope {self.scope}",
            f"it asks for {', '.join(others[:8]) or 'none'}",
            advice="name the scope with jax.named_scope, around the collective",
        )

    def _cannot_tell(
        self, compiled: list[Collective], requested: Sequence[RequestedCollective], dead: int
    ) -> list[Violation]:
        """Combined ones that name too few scopes, if one of the dead could be among them."""
        others = sum(each.kind == self.kind for each in requested) - dead
        unnamed = [each for each in compiled if len(each.scopes) < len(each.results)]
        if not unnamed or sum(len(each.results) for each in compiled) <= others:
            return []
        each = unnamed[0]
        return [
            Violation(
                f"a scope for each result of {self.kind}, to tell that none is of {self.scope}",
                f"{len(each.results)} results, and {', '.join(each.scopes) or 'no scope'}",
                describe(each),
                each.source,
                "give every collective a jax.named_scope of its own, or keep XLA from combining",
            )
        ]


def _no_record() -> Violation:
    return Violation(
        "a record of the collectives that the program asks for",
        "the dump has none",
        advice="make the dump again with this xlapipe",
    )
