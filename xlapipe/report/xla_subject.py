"""Dumps of XLA as commands show them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.text import Text

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.device import Device
from xlapipe.dump.dump import Dump
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import TargetError
from xlapipe.plans.donation import donations
from xlapipe.plans.plan import Plan
from xlapipe.plans.second_call import recompiles
from xlapipe.report.subjects import ShowOptions
from xlapipe.time.predicted_locks.plan_error import OtherPlan, other_plan
from xlapipe.time.prediction_settings import DEFAULT_SETTINGS, PredictionSettings
from xlapipe.time.study import Study, study_of

if TYPE_CHECKING:
    from xlapipe.dump.time_record import TimeRecord
    from xlapipe.expect import Finding
    from xlapipe.plans.donation import Donation
    from xlapipe.time.cost import StepCost
    from xlapipe.time.predict import Prediction


@dataclass(frozen=True)
class XlaSubject:
    """A dump of XLA, or files that XLA wrote, with the figures of its times.

    Attributes:
      given_name: for people, where the path is not.
    """

    program: XlaFiles
    settings: PredictionSettings = DEFAULT_SETTINGS
    given_name: str = ""

    @property
    def dump(self) -> Dump | None:
        """None for files that xlapipe did not write."""
        return self.program if isinstance(self.program, Dump) else None

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.given_name or str(self.program.path)

    @property
    def plan(self) -> Plan:
        return self.program.plan

    @property
    def autotuning(self) -> str:
        """The label of the plan."""
        return self.program.autotuning

    @cached_property
    def study(self) -> Study:
        """Cost and predicted time of the plan."""
        return study_of(self.program, self.settings, self.program.lowered_module)

    @property
    def notes(self) -> tuple[str, ...]:
        """What XLA computes again, what was not read, and what is particular to the program."""
        repeated, total = self.study.recomputation, self.plan.totals.total_allocation_bytes
        return (*([repeated.text(total)] if repeated is not None else []), *self.program.notes)

    @property
    def device(self) -> Device | None:
        """The GPU that the plan is for; None if the target is unknown, or is not a GPU."""
        return self.study.device

    @property
    def step_cost(self) -> "StepCost | None":
        """What a step must cost; None if the dump has no complete HLO module."""
        return self.study.cost

    @property
    def prediction(self) -> "Prediction | None":
        """The predicted time of a step; None without a complete HLO module, or for no known GPU."""
        return self.study.prediction

    @cached_property
    def time_record(self) -> "TimeRecord | None":
        """Measured times; None if absent, or of another plan."""
        from xlapipe.dump.time_record import read_time_record

        if self.dump is None or self.step_cost is None:
            return None
        record = read_time_record(self.dump.path)
        if record is None:
            return None
        record.refuse_unless_of(self.dump.manifest.target_description, where=self.dump.path)
        kernels = {kernel.name for kernel in self.step_cost.kernels}
        return record if record.seconds_of.keys() <= kernels else None

    def figures(self, options: ShowOptions) -> dict[str, Any]:
        """The JSON of `xlapipe show`."""
        from xlapipe.report.plan_figures import figures_of

        return dict(figures_of(self))

    def lines(self, options: ShowOptions) -> Iterator[Text]:
        """What `xlapipe show` prints on a terminal."""
        if options.kernel is not None:
            from xlapipe.report.time_lines import why_lines

            yield from map(Text, why_lines(self.prediction, options.kernel))
            return
        if options.names:
            from xlapipe.report.overview.named_lines import named_lines

            yield from named_lines(self, options.names, width=options.width)
            return
        if not options.keys:
            from xlapipe.report.overview.overview import Overview
            from xlapipe.report.overview.overview_lines import overview_lines

            yield from overview_lines(Overview(self), self.name, width=options.width)
            return
        from xlapipe.report.pages import page_lines
        from xlapipe.report.plan_page import plan_page

        yield from page_lines(plan_page(self, options.keys))

    def trace(self) -> bytes:
        """The predicted timeline as a Chrome trace; raises as `trace_of`."""
        from xlapipe.report.timeline import trace_of

        return trace_of(self)

    @cached_property
    def findings(self) -> "Sequence[Finding]":
        """Those of the dump's expectations, and of what no dump states."""
        from xlapipe.expect import CompiledOnce, check_all
        from xlapipe.expect.second_call import second_call_findings
        from xlapipe.report.findings import refused_finding

        if self.dump is None:
            return ()
        expectations, refused = self.dump.expectations, self.dump.manifest.refused
        is_stated = any(isinstance(item, CompiledOnce) for item in expectations)
        return (
            *([refused_finding(refused, self.plan)] if refused is not None else []),
            *(() if is_stated else second_call_findings(self.program)),
            *check_all(expectations, self.program),
        )

    @property
    def check_notes(self) -> Sequence[str]:
        """What the findings do not cover."""
        from xlapipe.report.memory_spaces import host_lines

        dump = self.dump
        if dump is None:
            note = "not a dump of xlapipe, so without expectations; the plan's invariants hold"
            return [note, *self.notes]
        notes = []
        if unrecorded := sum(item is None for item in dump.manifest.expectations):
            notes.append(f"not checked: {unrecorded} expectations defined outside xlapipe.expect")
        if not dump.expectations:
            notes.append("the dump contains no expectations; the plan's invariants hold")
        notes += self.notes
        if other := self.other_plan:
            total = self.plan.totals.total_allocation_bytes
            notes.append(f"expected total: {total:,} B, or {other.text(total)}")
        return [*notes, *host_lines(self.plan)]

    @property
    def other_plan(self) -> OtherPlan | None:
        """The plan with the other choice of the tuner; None where that is unlikely."""
        return other_plan(self.plan, self.program.facts.other_choice)

    @property
    def closing_lines(self) -> Sequence[str]:
        """What a check prints after the findings: donations that failed, and collectives."""
        from xlapipe.report.collective_lines import collective_lines
        from xlapipe.report.donation_lines import donation_lines

        return [*donation_lines(self._donations), *collective_lines(self)]

    @property
    def check_details(self) -> dict[str, Any]:
        """What the JSON of a check has beyond the findings."""
        from xlapipe.report.collective_lines import collective_figures, requested_collectives
        from xlapipe.report.donation_lines import donation_figures

        return {
            "donations": list(map(donation_figures, self._donations)),
            "collectives": collective_figures(self),
            "requested_collectives": requested_collectives(self),
            "recompiles": recompiles(self.program),
        }

    @property
    def _donations(self) -> "Sequence[Donation]":
        return donations(self.program) if self.dump is not None else ()


def settings_for(program: XlaFiles, settings: PredictionSettings) -> PredictionSettings:
    """The settings with the catalogue's name of their target, on which the program can run."""
    if settings.target is None:
        return settings
    target, platform = target_named(settings.target), platform_named(program.plan.platform)
    is_known = program.facts.target is not None
    if target.platform != platform.name or (platform.is_scheduled and is_known):
        raise TargetError(
            f"--target {settings.target}: a program's time is that on devices of its own vendor, "
            "and on TPUs that of the TPU it was compiled for; found "
            f"{target.description} and a program for {platform.vendor}; fix: `xlapipe dump "
            f"WORKLOAD --target {settings.target}`"
        )
    return replace(settings, target=target.name)
