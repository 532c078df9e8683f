"""What an expectation is, and what it answers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields

from xlapipe.plan.hlo import SourceLine
from xlapipe.plan.program import Program


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where the plan is not as expected.

    Attributes:
      expected, found: in words, with bytes.
      where: the allocation and the instruction.
      source: the line of the program, from the HLO's metadata.
      advice: what to try.
    """

    expected: str
    found: str
    where: str = ""
    source: SourceLine | None = None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one expectation; it holds if there are no violations.

    Attributes:
      expectation: as its author wrote it.
      because: the author's formula or reason.
      measured: the figure that was held against the expectation.
    """

    expectation: str
    because: str
    measured: str
    violations: tuple[Violation, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.violations


@dataclass(frozen=True, kw_only=True)
class Expectation(ABC):
    """Base of the vocabulary. Subclasses are frozen dataclasses of plain data.

    Attributes:
      because: the formula or the reason, in words.
      under: the GEMM policy under which it is held; None for every policy.
    """

    because: str = field(default="", kw_only=True)
    under: str | None = field(default=None, kw_only=True)

    @abstractmethod
    def check(self, program: Program) -> Finding:
        """Holds the program's plan against the expectation."""

    def finding(self, measured: str, *violations: Violation) -> Finding:
        return Finding(str(self), self.because, measured, violations)

    def __str__(self) -> str:
        stated = (
            f"{item.name}={_brief(getattr(self, item.name))}"
            for item in fields(self)
            if item.name not in ("because", "under") and getattr(self, item.name) != item.default
        )
        return f"{type(self).__name__}({', '.join(stated)})"


def _brief(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, tuple) and len(value) > 4:
        return f"({_brief(value[0])}, … {len(value)} in all)"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return repr(value) if isinstance(value, str) else str(value)


def check_all(expectations: tuple[Expectation, ...], program: Program) -> tuple[Finding, ...]:
    """Checks those expectations that apply under the program's GEMM policy."""
    return tuple(
        expectation.check(program)
        for expectation in expectations
        if expectation.under is None or expectation.under == program.gemm_policy
    )
