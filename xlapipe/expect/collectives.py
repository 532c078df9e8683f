"""Expectations of collectives: those that are compiled, and those of the traced program."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_module
from xlapipe.expect.gemms import within_differentiated
from xlapipe.plans.collectives import Collective
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.program import Program, RequestedCollective
from xlapipe.plans.wording import counted, tally

Kinds = str | tuple[str, ...] | None
"""XLA's kind of a collective, several of them, or None for all."""

# Instructions or op names that a violation lists.
_MAX_LISTED = 8


class _CollectiveExpectation(Expectation):
    """Base class of expectations of the compiled collectives of one kind, or of several.

    Attributes:
      kind: XLA's name, e.g. `all-gather`; None for all kinds. Each subclass declares it as a
        field, at its own position among the parameters.
    """

    kind: Kinds

    def _check(self, program: Program) -> Finding:
        collectives = collectives_of(program)
        check_kind(self.kind)
        return self._compare(collectives, of_kind(collectives, self.kind))

    @abstractmethod
    def _compare(self, collectives: Sequence[Collective], matching: list[Collective]) -> Finding:
        """Check the collectives of the program, of which `matching` have the kind."""


@dataclass(frozen=True)
class CollectiveCount(_CollectiveExpectation):
    """Exactly `count` collectives of XLA's `kind` (e.g. `all-gather`; None: of any kind).

    A tuple of kinds counts all of them: XLA for TPUs may write a reduce-scatter as an all-reduce.

    Collectives that XLA combined count as one. A collective in a loop body counts once,
    independent of the trip count.
    """

    count: int
    kind: Kinds = None

    def _compare(self, collectives: Sequence[Collective], matching: list[Collective]) -> Finding:
        measured = kind_counts(collectives)
        if len(matching) == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{self.count} × {_kinds_text(self.kind) or 'a collective'}",
                f"{len(matching)} ({measured})",
                ", ".join(collective.instruction for collective in matching[:_MAX_LISTED]),
                matching[-1].source if matching else None,
                "check whether XLA combined several, replaced one by another kind, or added some "
                "because of the shardings of arguments and results",
            ),
        )


@dataclass(frozen=True)
class CollectiveBytes(_CollectiveExpectation):
    """The results of all collectives of `kind` total `size_bytes`, on one device in one step.

    `operands=True` counts operands instead. A collective in a loop counts once per trip;
    combining collectives does not change the total. A tuple of kinds counts all of them.
    """

    size_bytes: int
    kind: Kinds = None
    operands: bool = False

    def _compare(self, collectives: Sequence[Collective], matching: list[Collective]) -> Finding:
        total_bytes, violations = 0, []
        side = "operands" if self.operands else "results"
        for collective in matching:
            step_bytes = collective.of_step(self._bytes_of(collective))
            if step_bytes is None:
                violations.append(_unknown_bytes(collective))
            else:
                total_bytes += step_bytes
        measured = f"{total_bytes:,} B of {side} in {counted(len(matching), 'collective')}"
        if not violations and total_bytes != self.size_bytes:
            largest = max(
                matching, key=lambda collective: self._bytes_of(collective) or 0, default=None
            )
            violations.append(
                Violation(
                    f"{self.size_bytes:,} B of {side} of "
                    f"{_kinds_text(self.kind) or 'all collectives'}",
                    f"{total_bytes:,} B, {total_bytes - self.size_bytes:+,} B",
                    describe(largest) if largest is not None else "",
                    largest.source if largest is not None else None,
                    "compare shapes, dtypes and the number of devices with the formula",
                )
            )
        return self.finding(measured, *violations)

    def _bytes_of(self, collective: Collective) -> int | None:
        return collective.operand_bytes if self.operands else collective.output_bytes


@dataclass(frozen=True)
class CollectiveEach(_CollectiveExpectation):
    """Every array in the result of a collective of `kind` has `size_bytes`, on one device.

    A collective that XLA combined has several arrays. (XLA may combine several all-reduces into
    one of a single array that contains all of theirs: use `CollectiveBytes` for all-reduces.)
    """

    kind: str
    size_bytes: int

    def _compare(self, collectives: Sequence[Collective], matching: list[Collective]) -> Finding:
        violations = [
            Violation(
                f"{self.size_bytes:,} B from each {self.kind}",
                f"{'?' if shape.size_bytes is None else f'{shape.size_bytes:,}'} B ({shape})",
                describe(collective),
                collective.source,
                "compare the shape, its dtype and the number of devices with the formula",
            )
            for collective in matching
            for shape in collective.results
            if shape.size_bytes != self.size_bytes
        ]
        if not matching:
            violations.append(_none_of(self.kind, collectives))
        array_count = sum(len(collective.results) for collective in matching)
        return self.finding(
            f"{counted(array_count, 'array')} in {counted(len(matching), 'collective')}",
            *violations,
        )


@dataclass(frozen=True)
class CollectivesOverlap(_CollectiveExpectation):
    """Every collective of `kind`, except `all_but`, overlaps with other work.

    Work overlaps if it is scheduled between the start and the end of an asynchronous collective.
    Before the first gather and after the last scatter there may be nothing to compute, hence
    `all_but`. `gemms=True` requires a matrix product among the work.
    """

    kind: str
    all_but: int = 0
    gemms: bool = False

    def _compare(self, collectives: Sequence[Collective], matching: list[Collective]) -> Finding:
        exposed = [
            it
            for it in matching
            if not it.asynchronous or not (it.overlapped_gemms if self.gemms else it.overlapped_by)
        ]
        measured = f"{len(matching) - len(exposed)} of {len(matching)} overlapped"
        if not matching:
            return self.finding(measured, _none_of(self.kind, collectives))
        if len(exposed) <= self.all_but:
            return self.finding(measured)
        work = "a gemm" if self.gemms else "work"
        return self.finding(
            measured,
            *(
                Violation(
                    f"{work} between start and end of every {self.kind}"
                    + (f" except {self.all_but}" if self.all_but else ""),
                    f"{collective.instruction} {_overlap_text(collective)}",
                    describe(collective),
                    collective.source,
                    "issue the collective earlier than its result is read, or lower the "
                    "combiner's thresholds (xla_gpu_…_combine_threshold_bytes): a combined "
                    "collective waits for all of its operands",
                )
                for collective in exposed
            ),
        )


def _overlap_text(collective: Collective) -> str:
    if not collective.asynchronous:
        return "is synchronous"
    if not collective.overlapped_by:
        return "overlaps with nothing"
    return f"overlaps with {counted(len(collective.overlapped_by), 'instruction')}, but no gemm"


def of_kind(collectives: Sequence[Collective], kind: Kinds) -> list[Collective]:
    """The collectives of a kind, or of several; all of them if `kind` is None."""
    kinds = _as_tuple(kind)
    return [collective for collective in collectives if kind is None or collective.kind in kinds]


def _as_tuple(kind: Kinds) -> tuple[str, ...]:
    return (kind,) if isinstance(kind, str) else kind or ()


def _kinds_text(kind: Kinds) -> str:
    return " or ".join(_as_tuple(kind))


def kind_counts(collectives: Sequence[Collective]) -> str:
    """`2 all-gather, 1 reduce-scatter`."""
    return tally(collective.kind for collective in collectives)


def describe(collective: Collective) -> str:
    """`all-gather.2 of bf16[16,16]{1,0}, bf16[16,16]{1,0} over 2 devices`."""
    size = collective.group_size
    over = "" if size is None else f" over {counted(size, 'device')}"
    return f"{collective.instruction} of {', '.join(map(str, collective.results))}{over}"


def _unknown_bytes(collective: Collective) -> Violation:
    name = f"{collective.kind} {collective.instruction}"
    if collective.executions is None:
        unknown = f"{name} runs an unknown number of times"
        advice = (
            "it is in a branch or in a loop with an unknown trip count: use a scan or a static "
            "trip count"
        )
    else:
        unknown = f"{name} has an unknown number of bytes"
        advice = "its shapes are dynamic"
    return Violation(
        "collectives with a known number of bytes per step",
        unknown,
        describe(collective),
        collective.source,
        advice,
    )


def _none_of(kind: str | None, collectives: Sequence[Collective]) -> Violation:
    return Violation(
        f"a collective of kind {kind}",
        f"none (the program has: {kind_counts(collectives)})",
        advice="check whether XLA replaced it by another kind, or removed it because nothing "
        "reads its result",
    )


def collectives_of(program: Program) -> Sequence[Collective]:
    """The compiled collectives.

    Raises:
      UnknownError: the dump has no complete HLO module.
    """
    collectives = program.plan.collectives
    if collectives is None:
        raise no_module("collectives")
    return collectives


def check_kind(kind: Kinds) -> None:
    """Refuse a kind that XLA does not have.

    Raises:
      UnknownError: the violation lists XLA's kinds.
    """
    unknown = [name for name in _as_tuple(kind) if name not in COLLECTIVES]
    if unknown:
        known = ", ".join(sorted(COLLECTIVES))
        expected = f"a kind of collective: {known}"
        raise UnknownError(Violation(expected, f"{unknown[0]!r}", advice="use XLA's name"))


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
        in_scope = [
            collective
            for collective in _requested_of_kind(requested, self.kind)
            if within_differentiated(self.scope, collective.op_name)
        ]
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
