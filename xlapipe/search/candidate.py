"""A form of a step that can be compiled: arguments, a target, and a change to the step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xlapipe.compile.job import Job, XlaOption
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.compile.make_jobs import CompileSettings, changed_reference, jobs_of
from xlapipe.registry import WorkloadReference


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """What a policy computes again, of the values of a forward pass.

    Attributes:
      numbers: of the values that are not kept, whether the backward pass uses them or not.
      parts: calls or iterations, of which one is computed again at a time.
      share: of the calls that get the policy.
    """

    numbers: frozenset[int]
    parts: int
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class StepChange:
    """A change to a step.

    Attributes:
      text: what it does, on one line.
      code: what to write; the step compiles with it to the plan of its row. Empty for a change
        that `text` states.
      arguments: of `changed_workload`; empty if the step's Python stays as it is.
      policy: what `jax.checkpoint` keeps; None for the step's own.
      options: extra XLA options.
      several_devices: whether it changes the number of devices.
      recomputed: what the policy computes again; None if its memory is not estimated.
    """

    text: str
    code: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    policy: PolicyChange | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict)
    several_devices: bool = False
    recomputed: Recomputed | None = None

    @property
    def only_donates(self) -> bool:
        """Whether the step's values are computed as before, and arguments are given up for them."""
        return set(self.arguments) == {"donate"} and self.policy is None and not self.options

    @property
    def offloads(self) -> bool:
        """Whether its policy moves values to the host's memory."""
        return self.policy is not None and "pinned_host" in self.policy.source

    def joined(self, other: "StepChange") -> "StepChange":
        """Both changes, which change different things; what is estimated of one is not of both."""
        policy = self.policy or other.policy
        if self.policy is not None and other.policy is not None:
            policy = replace(self.policy, also=other.policy)
        return replace(
            self,
            recomputed=self.recomputed if other.policy is None else None,
            text=f"{self.text}; {other.text}",
            code="\n".join(filter(None, (self.code, other.code))),
            arguments={**self.arguments, **other.arguments},
            policy=policy,
            options={**self.options, **other.options},
        )

    @property
    def is_same_step(self) -> bool:
        """Whether it computes the same from the same arguments on the same number of devices."""
        return not self.several_devices and "halve" not in self.arguments


@dataclass(frozen=True)
class Candidate:
    """One compile.

    Attributes:
      reference: the workload; its arguments include `values`.
      values: of `--vary`, by name, in the order of the axes.
      target: a name of `xlapipe targets`; empty for that of the settings.
      change: None for the step as it is written.
    """

    reference: WorkloadReference
    values: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    change: StepChange | None = None

    def is_at(self, point: Mapping[str, Any]) -> bool:
        """Whether it has the values of `point`, which may lack axes."""
        return all(self.values[name] == value for name, value in point.items())

    @property
    def values_text(self) -> str:
        """E.g. `batch=8, seq=2048`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.values.items())

    @property
    def change_text(self) -> str:
        return self.change.text if self.change is not None else "as written"

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.values_text, self.change_text)))


def job_of(
    candidate: Candidate,
    settings: CompileSettings,
    *,
    record: str | None = None,
    unchanged: str | None = None,
) -> Job:
    """The compile of a candidate; `record` and `unchanged` as of `PolicyChange`."""
    if candidate.target and settings.target_config is None:
        settings = replace(settings, target=candidate.target)
    (job,) = jobs_of([candidate.reference], settings)
    return changed_job(job, candidate.change, record=record, unchanged=unchanged)


def changed_job(
    job: Job,
    change: StepChange | None,
    *,
    record: str | None = None,
    unchanged: str | None = None,
) -> Job:
    """The compile of a change of a job's workload."""
    change = change or StepChange("as written")
    policy, arguments = change.policy, dict(change.arguments)
    if record is not None or unchanged is not None:
        policy = replace(policy or PolicyChange(), record=record, unchanged=unchanged)
    if policy is not None:
        arguments["policy"] = policy.to_json()
    job = replace(
        job,
        options={**job.options, **change.options},
        topology=None if change.several_devices else job.topology,
    )
    if not arguments:
        return job
    return replace(job, reference=changed_reference(job.reference, **arguments))
