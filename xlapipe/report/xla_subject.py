"""Dumps of XLA as commands show them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rich.text import Text

from xlapipe.devices.platforms import platform_named
from xlapipe.dump.opened import Opened
from xlapipe.errors import TargetError
from xlapipe.plans.copies import find_copies
from xlapipe.plans.copy_advice import copied_leaves
from xlapipe.plans.donation import donations
from xlapipe.plans.second_call import recompiles
from xlapipe.plans.wording import counted
from xlapipe.report.subjects import CheckedSubject, ShowOptions, TimeOptions
from xlapipe.report.units import rounded

# Smaller copies take less time than the launch of a kernel.
_LEAST_COPY_BYTES = 1024


@dataclass(frozen=True)
class XlaSubject:
    """A dump of XLA, or files that XLA wrote."""

    opened: Opened

    def figures(self, options: ShowOptions) -> dict[str, Any]:
        """The JSON of `xlapipe show`."""
        from xlapipe.report.plan_figures import figures_of

        return dict(figures_of(self.opened))

    def lines(self, options: ShowOptions) -> Iterator[Text]:
        """What `xlapipe show` prints on a terminal."""
        if options.kernel is not None:
            from xlapipe.report.why_lines import why_lines

            yield from map(Text, why_lines(self.opened.prediction, options.kernel))
            return
        if options.names:
            from xlapipe.report.overview.named_lines import named_lines

            yield from named_lines(self.opened, options.names, width=options.width)
            return
        if not options.sections:
            from xlapipe.report.overview.overview import Overview
            from xlapipe.report.overview.overview_lines import overview_lines

            yield from overview_lines(Overview(self.opened), self.opened.name, width=options.width)
            return
        from xlapipe.report.plan_lines import plan_lines

        yield from plan_lines(self.opened, options)

    def trace(self) -> bytes:
        """The predicted timeline as a Chrome trace; raises as `trace_of`."""
        from xlapipe.report.timeline import trace_of

        return trace_of(self.opened)

    def checked(self) -> CheckedSubject:
        """The findings of the dump's expectations."""
        from xlapipe.expect import CompiledOnce, check_all
        from xlapipe.expect.second_call import second_call_findings
        from xlapipe.expect.unused import unused_findings
        from xlapipe.report.findings import refused_finding
        from xlapipe.report.memory_spaces import host_lines

        opened, dump = self.opened, self.opened.dump
        if dump is None:
            note = "not a dump of xlapipe, so without expectations; the plan's invariants hold"
            return self._checked((), [note, *_largest_copy(opened), *opened.notes])
        notes = []
        if unrecorded := sum(item is None for item in dump.manifest.expectations):
            notes.append(f"not checked: {unrecorded} expectations defined outside xlapipe.expect")
        if not dump.expectations:
            notes.append("the dump contains no expectations; the plan's invariants hold")
            notes += _largest_copy(opened)
        on_unused = dump.manifest.notes_on_unused
        notes += [note for note in opened.notes if note not in on_unused]
        notes += host_lines(opened.plan)
        is_stated = any(isinstance(item, CompiledOnce) for item in dump.expectations)
        findings = (
            *unused_findings(opened.program),
            *(() if is_stated else second_call_findings(opened.program)),
            *check_all(dump.expectations, opened.program),
        )
        if dump.manifest.refused is not None:
            findings = (refused_finding(dump.manifest.refused, opened.plan), *findings)
        return self._checked(findings, notes)

    def _checked(self, findings: Sequence[Any], notes: Sequence[str]) -> CheckedSubject:
        from xlapipe.report.collective_lines import (
            collective_figures,
            collective_lines,
            requested_collectives,
        )
        from xlapipe.report.donation_lines import donation_figures

        opened = self.opened
        donated = donations(opened.program) if opened.dump is not None else ()
        return CheckedSubject(
            opened.name,
            opened.autotuning,
            findings,
            notes,
            donated,
            tuple(collective_lines(opened)),
            {
                "donations": list(map(donation_figures, donated)),
                "collectives": collective_figures(opened),
                "requested_collectives": requested_collectives(opened),
                "recompiles": recompiles(opened.program),
            },
        )


def _largest_copy(opened: Opened) -> Iterator[str]:
    """The largest copy, for a check without an expectation that limits copies."""
    copies = find_copies(opened.plan)
    if not copies or copies[0].copied_bytes < _LEAST_COPY_BYTES:
        return
    copy = copies[0]
    at = f" at {copy.source}" if copy.source is not None else ""
    yield (
        f"{counted(len(copies), 'copy', 'copies')}, the largest {rounded(copy.copied_bytes)}"
        f"{copied_leaves(opened.program, copy)} by {copy.instruction}{at} (the expectation "
        "NoCopyAbove fails on large ones)"
    )


@dataclass(frozen=True)
class XlaReport:
    """A report on dumps of XLA; two are compared."""

    dumps: tuple[Opened, ...]

    @cached_property
    def _comparison(self) -> Mapping[str, Any] | None:
        from xlapipe.report.difference import compare_dumps

        return compare_dumps(*self.dumps) if len(self.dumps) == 2 else None

    @property
    def data(self) -> Mapping[str, Any]:
        """The JSON of `xlapipe report`."""
        from xlapipe.report.plan_figures import dump_data

        return {"subjects": list(map(dump_data, self.dumps)), "difference": self._comparison}

    def markdown(self) -> str:
        """The report as Markdown."""
        from xlapipe.report.plan_page import report_markdown

        return report_markdown(self.dumps, self._comparison)

    def page(self) -> str:
        """The report as one HTML document."""
        from xlapipe.report.html_page import render_page

        return render_page(self.dumps, self._comparison)


def with_times(opened: Opened, times: TimeOptions) -> Opened:
    """The dump with what its times are predicted from.

    Raises:
      XlapipeError: a target that is not known or whose times cannot be computed, or a damaged
        calibration.
    """
    if times.target is not None:
        opened = replace(opened, target=_gpu_named(times.target))
    if times.calibration is not None:
        from xlapipe.time.predict.calibration import read_calibration

        opened = replace(opened, calibration=read_calibration(times.calibration))
    if times.timed is not None:
        from xlapipe.report.timed_kernels import timed_kernels

        name = opened.device.name if opened.device is not None else ""
        opened = replace(opened, timed=timed_kernels(times.timed, name))
    return replace(opened, unknown_trips=times.trips, host=times.host)


def _gpu_named(name: str) -> str:
    """The name of a GPU of the catalogue.

    Raises:
      TargetError: there is no such target, or it is a TPU.
    """
    from xlapipe.devices.targets.catalogue import target_named

    target = target_named(name)
    if platform_named(target.platform).is_scheduled:
        raise TargetError(
            f"--target {name}: expected a GPU, because a TPU's time is that of a program "
            f"compiled for it, found {target.description}; fix: `xlapipe dump WORKLOAD --target "
            f"{name}`"
        )
    return target.name
