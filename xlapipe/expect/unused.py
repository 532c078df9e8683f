"""Arguments that a program does not read, and outputs that depend on none: perhaps a mistake.

They are warnings, since a step may well have both: a key that only training uses, a constant mask.
"""

from collections.abc import Iterator

from xlapipe.expect.expectation import Finding, Violation
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted


def unused_findings(program: Program) -> tuple[Finding, ...]:
    """A warning for each of these that the program has; empty for a dump without a manifest."""
    return tuple(_unused(program))


def _unused(program: Program) -> Iterator[Finding]:
    unread = [leaf for leaf in program.arguments if leaf.parameter_number is None]
    constant = [leaf for leaf in program.outputs if leaf.constant]
    if program.outputs and len(constant) == len(program.outputs):
        yield _warning(
            "the outputs depend on the arguments",
            f"{counted(len(program.outputs), 'output')}, and none depends on an argument",
            Violation(
                "at least one output that is computed from an argument",
                "a program that computes constants",
                where=", ".join(leaf.path for leaf in constant[:4]),
                advice="check that the workload's function is the step, and that its values are "
                "its arguments and not variables that it encloses",
            ),
        )
    elif constant:
        yield _warning(
            "every output depends on an argument",
            f"{len(constant)} of {len(program.outputs)} depend on none",
            *(
                Violation(
                    "an output that is computed from an argument",
                    f"{leaf.path} depends on none",
                    where=leaf.path,
                    advice="compute it once outside of the step, or check that the step returns "
                    "what it computed",
                    group="outputs",
                    size_bytes=leaf.size_bytes,
                    subject=leaf.path,
                )
                for leaf in constant
            ),
        )
    if unread:
        yield _warning(
            "every argument is read",
            f"{len(unread)} of {len(program.arguments)} are not",
            *(
                Violation(
                    "an argument that the program reads",
                    f"{leaf.path} is not used",
                    where=leaf.path,
                    advice="leave it out of the arguments, or check that the step uses it",
                    group="arguments",
                    size_bytes=leaf.size_bytes,
                    subject=leaf.path,
                )
                for leaf in unread
            ),
        )


def _warning(expectation: str, measured: str, *violations: Violation) -> Finding:
    return Finding(expectation, "", measured, violations, is_warning=True)
