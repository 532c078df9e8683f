"""The base class of expectations, and the result of checking one."""

from dataclasses import dataclass, field, fields

from xlapipe.devices.platforms import platform_named
from xlapipe.plans import Program, SourceLine


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where the plan differs from the expectation.

    Attributes:
      expected, found: in words, with exact bytes.
      where: the allocation, value or instruction.
      source: line of the program, from the HLO's metadata.
      advice: what to try, as an imperative sentence.
      group: what it is one of, in the plural, e.g. `leaves of 'model'`: violations of one group and
        advice are printed once. Empty if it is printed for itself.
      size_bytes: what it concerns, to be added up over a group; None if nothing is.
      subject: the leaf or the instruction of a group that it is about.
    """

    expected: str
    found: str
    where: str = ""
    source: SourceLine | None = None
    advice: str = ""
    group: str = ""
    size_bytes: int | None = None
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one expectation; the expectation holds if there are no violations.

    Attributes:
      expectation: as its author wrote it.
      because: the author's formula or reason.
      measured: the figure that was checked, as text.
      is_warning: whether violations are stated without a failure.
    """

    expectation: str
    because: str
    measured: str
    violations: tuple[Violation, ...] = ()
    is_warning: bool = False

    @property
    def holds(self) -> bool:
        return self.is_warning or not self.violations


class UnknownError(Exception):
    """The dump lacks what an expectation needs.

    Attributes:
      violation: what it lacks, and how to get it.
      measured: what to print in place of the figure.
    """

    def __init__(self, violation: Violation, measured: str = "unknown") -> None:
        self.violation, self.measured = violation, measured


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Base class of all expectations. Subclasses are frozen dataclasses of plain data.

    Attributes:
      because: the formula or the reason for the expectation, in words.
      under: the platform (`cuda`, `tpu`) or a GPU's GEMM policy (`auto`, `cublas`, `triton`) for
        which it is checked; None for all.
    """

    because: str = field(default="", kw_only=True)
    under: str | None = field(default=None, kw_only=True)

    def check(self, program: Program) -> Finding:
        """Check the program's plan."""
        try:
            return self._check(program)
        except UnknownError as unknown:
            return self.finding(unknown.measured, unknown.violation)

    def _check(self, program: Program) -> Finding:
        """Check the program's plan.

        Raises:
          UnknownError: the dump lacks a part that is needed.
        """
        raise NotImplementedError

    def finding(self, measured: str, *violations: Violation) -> Finding:
        """The result of this expectation for a measured figure."""
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
        return f"({_brief(value[0])}, … {len(value)} in total)"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return repr(value) if isinstance(value, str) else str(value)


def check_all(expectations: tuple[Expectation, ...], program: Program) -> tuple[Finding, ...]:
    """Check the expectations that apply under the program's GEMM policy and platform."""
    platform = platform_named(program.plan.platform)
    # GEMM policies choose among a GPU's backends; a TPU has no choice.
    policies = (program.facts.gemm_policy,) if len(platform.gemm_policies) > 1 else ()
    applicable = (None, platform.name, *policies)
    return tuple(
        expectation.check(program)
        for expectation in expectations
        if expectation.under in applicable
    )


def no_module(needed: str) -> UnknownError:
    """For a dump without a complete HLO module, of which `needed` is a part."""
    return UnknownError(
        Violation(
            f"the {needed} of the module",
            "the dump has no complete HLO module",
            advice="dump with xla_dump_hlo_as_proto or xla_dump_hlo_as_text",
        )
    )


def no_live_ranges(needed: str) -> UnknownError:
    """For a dump without live ranges of `needed`."""
    return UnknownError(
        Violation(
            f"live ranges of {needed}",
            "the dump has none",
            advice="put XLA's *live-range.txt next to the dump",
        )
    )
