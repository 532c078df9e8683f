"""Expectations of requested collectives: those in the traced program, before optimisation."""

from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.expect.collectives import check_kind, collectives_of, describe, of_kind
from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation
from xlapipe.expect.gemms import within_differentiated
from xlapipe.plans.collectives import Collective
from xlapipe.plans.program import Program, RequestedCollective
from xlapipe.plans.wording import counted

# Op names that a violation lists.
_MAX_LISTED = 8


@dataclass(frozen=True)
class CollectivesAskedFor(Expectation):
    """The traced program contains exactly `count` collectives of XLA's `kind`.

    This is the program before jax and XLA remove or merge any. A collective of a pytree counts
    once per primitive that jax traces for it. Collectives that XLA adds because of shardings are
    not in the traced program.
    """

    count: int
    kind: str

    def _check(self, program: Program) -> Finding:
        requested = _requested(program)
        check_kind(self.kind)
        matching = _requested_of_kind(requested, self.kind)
        if len(matching) == self.count:
            return self.finding(f"{len(matching)}")
        return self.finding(
            f"{len(matching)}",
            Violation(
                f"{self.count} × {self.kind} in the traced program",
                f"{len(matching)}" + (f", the last is {matching[-1].op_name}" if matching else ""),
                source=matching[-1].source if matching else None,
                advice="the model and its expectations disagree: change one of them",
            ),
        )


@dataclass(frozen=True)
class DeadCollective(Expectation):
    """The traced program has collectives of `kind` in the name scope `scope`; none is compiled.

    So jax or XLA removed them because nothing reads their results. `scope` is a `jax.named_scope`,
    also inside the `jvp(…)` and `transpose(…)` of autodiff.
    """

    kind: str
    scope: str

    def _check(self, program: Program) -> Finding:
        collectives, requested = collectives_of(program), _requested(program)
        in_scope = [collective for collective in requested if self._in_scope(collective)]
        alive = [
            collective
            for collective in of_kind(collectives, self.kind)
            if any(within_differentiated(self.scope, scope) for scope in collective.scopes)
        ]
        violations = [self._not_requested(requested)] if not in_scope else []
        violations += [
            Violation(
                f"no {self.kind} in {self.scope} after optimisation",
                f"{collective.kind} {collective.instruction}",
                describe(collective),
                collective.source or (in_scope[0].source if in_scope else None),
                "look for an unintended use of its result",
            )
            for collective in alive
        ]
        if in_scope and not alive:
            violations += self._ambiguous(of_kind(collectives, self.kind), requested, len(in_scope))
        return self.finding(f"{len(in_scope)} requested, {len(alive)} compiled", *violations)

    def _in_scope(self, collective: RequestedCollective) -> bool:
        return collective.kind == self.kind and within_differentiated(
            self.scope, collective.op_name
        )

    def _not_requested(self, requested: Sequence[RequestedCollective]) -> Violation:
        op_names = [collective.op_name for collective in _requested_of_kind(requested, self.kind)]
        return Violation(
            f"{self.kind} in the scope {self.scope} of the traced program",
            ", ".join(op_names[:_MAX_LISTED]) or "none",
            advice="put a jax.named_scope with this name around the collective",
        )

    def _ambiguous(
        self, compiled: list[Collective], requested: Sequence[RequestedCollective], dead_count: int
    ) -> list[Violation]:
        """The violation for a combined collective without scopes that may contain a dead one."""
        alive_count = len(_requested_of_kind(requested, self.kind)) - dead_count
        unnamed = [
            collective
            for collective in compiled
            if len(collective.scopes) < len(collective.results)
        ]
        if not unnamed or sum(len(collective.results) for collective in compiled) <= alive_count:
            return []
        first = unnamed[0]
        return [
            Violation(
                f"a scope for each result of {self.kind}, to show that none is from {self.scope}",
                f"{counted(len(first.results), 'result')}, "
                f"scopes: {', '.join(first.scopes) or 'none'}",
                describe(first),
                first.source,
                "give every collective a separate jax.named_scope, or keep XLA from combining them",
            )
        ]


def _requested_of_kind(
    requested: Sequence[RequestedCollective], kind: str
) -> list[RequestedCollective]:
    return [collective for collective in requested if collective.kind == kind]


def _requested(program: Program) -> Sequence[RequestedCollective]:
    if program.facts.requested_collectives is not None:
        return program.facts.requested_collectives
    raise UnknownError(
        Violation(
            "a record of the collectives of the traced program",
            "the dump has none",
            advice="dump the workload again with this version of xlapipe",
        )
    )
