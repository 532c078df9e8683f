"""What the compiling child reports and every dump keeps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from xlapipe.files.typed_data import Count, Natural
from xlapipe.plans.call_facts import CallFacts
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import ArgumentLeaf, NamedValue, OutputLeaf, RequestedCollective


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known of a step when it is lowered.

    Attributes:
      requested_collectives: those of the traced program; None for an old dump of several devices
        that lacks them.
      named_values: values of the traced program; empty also for an old dump that lacks them.
      expectations: as `expectation_to_json` writes them; None for one of a user's own class.
      mesh: axis names to sizes; None for one device.
      stated_costs, stated_trips, kernel_codes: as of `xlapipe.plans.Plan`.
      dropped_updates: values that the step stored in Python objects, which jax drops.
      asked_early: questions about devices that code asked before the step was traced, and that the
        compiling machine answered, with place and answer.
      call: what jax's caches depend on in a call; None for a dump from before it was recorded.
    """

    workload: str
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]
    expectations: tuple[Mapping[str, Any] | None, ...]
    requested_collectives: tuple[RequestedCollective, ...] | None = ()
    named_values: tuple[NamedValue, ...] = ()
    mesh: Mapping[str, Count] | None = None
    stated_costs: tuple[StatedCost, ...] = ()
    stated_trips: int | None = None
    kernel_codes: tuple[KernelCode, ...] = ()
    dropped_updates: tuple[str, ...] = ()
    asked_early: tuple[str, ...] = ()
    call: CallFacts | None = None


@dataclass(frozen=True, kw_only=True)
class CompileFacts(StepFacts):
    """What is known of a compile beyond XLA's own files.

    Attributes:
      options: XLA options of the workload; in a manifest also of the GEMM policy, and extra ones.
      memory_analysis: XLA's own totals in bytes: argument, output, alias, temp; empty if XLA
        refused the plan.
      topology: hosts and GPUs per host, `8x8`, or a grid of TPU chips; None for one device.
      fusion_without_result: the first fusion that the autotune results do not cover.
      predicted_lock: if the autotune results were predicted, the number of instructions with a
        result of each basis; see `xlapipe.time.predicted_locks.predict.Basis`.
      refused_tuning: whether XLA refused autotune results that were predicted; the plan has none.
      refused: XLA's message if it planned the program and then refused it for lack of memory.
      sorts_undecided, rematerialised_bytes: as of `xlapipe.plans.Plan`.
      xla_patches: names of the changes made to XLA in memory; empty also for a dump from
        before they were recorded.
    """

    versions: Mapping[str, str]
    options: Mapping[str, str]
    memory_analysis: Mapping[str, Natural]
    topology: str | None = None
    fusion_without_result: str | None = None
    predicted_lock: Mapping[str, int] | None = None
    refused_tuning: bool = False
    refused: str | None = None
    sorts_undecided: bool = False
    rematerialised_bytes: tuple[Natural, Natural] | None = None
    xla_patches: tuple[str, ...] = ()

    def in_plan(self, plan: Plan) -> Plan:
        """The plan with what of it is known beyond XLA's files."""
        return replace(
            plan,
            sorts_undecided=self.sorts_undecided,
            stated_costs=self.stated_costs,
            stated_trips=self.stated_trips,
            topology=self.topology,
            kernel_codes=self.kernel_codes,
            rematerialised_bytes=self.rematerialised_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        leaves = {
            name: [leaf.to_json() for leaf in getattr(self, name)]
            for name in ("arguments", "outputs")
        }
        return {**asdict(self), **leaves}
