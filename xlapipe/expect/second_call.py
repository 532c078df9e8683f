"""Whether a step's second call, with the outputs of the first, uses the same program."""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.program import Program
from xlapipe.plans.second_call import recompiles, second_call
from xlapipe.plans.wording import counted

_COMPILED_ONCE = "compiled once"


@dataclass(frozen=True)
class CompiledOnce(Expectation):
    """The second call of the step, with the outputs of the first as arguments, compiles nothing.

    Outputs replace arguments of equal path, and donated ones; `Workload(carry=…)` states others.
    """

    def __str__(self) -> str:
        return _COMPILED_ONCE

    def _check(self, program: Program) -> Finding:
        rows = recompiles(program)
        if program.facts.call is None or rows is None:
            advice = "dump the workload again"
            raise UnknownError(Violation("facts of the call", "none", advice=advice))
        trees = program.facts.call.carried
        if not trees:
            return self.finding(
                "nothing comes back",
                Violation(
                    "outputs that replace arguments",
                    "no output has the path of an argument, and none is donated",
                    advice="state which do: Workload(carry={'state': 'out[0]'})",
                ),
            )
        text = second_call(program) or "the second call compiles nothing"
        back = ", ".join(f"{path} in {output}" for path, output in list(trees.items())[:4])
        return self.finding(f"{text} ({back} comes back)", *_violations(program))


def second_call_findings(program: Program) -> tuple[Finding, ...]:
    """A warning for a step that compiles again; empty if it does not, or if that is unknown."""
    text = second_call(program)
    if not text:
        return ()
    return (Finding(_COMPILED_ONCE, "", text, tuple(_violations(program)), is_warning=True),)


def _violations(program: Program) -> Iterator[Violation]:
    rows = recompiles(program) or ()
    for row in rows:
        leaves = counted(len(rows), "leaf", "leaves").partition(" ")[2]
        yield Violation(
            f"{row.argument} comes back as it goes in, as {row.was}",
            f"{row.output} is {row.becomes}",
            source=row.source,
            advice=row.advice,
            group=f"{leaves} of {argument_name(row.argument)!r}, {row.why}",
            size_bytes=row.size_bytes,
            subject=row.argument,
        )
