"""The messages between the parent and the compiling child, as JSON files.

Both sides run the code of one checkout at one moment, so nothing is validated.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, RequestedCollective
from xlapipe.registry import WorkloadReference


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What the child is to compile, and where it writes.

    Attributes:
      program_path: a lowered program as JSON; None if the child imports and lowers `reference`.
      platform: jax's name of the platform, e.g. `cuda`.
      target_config: None for the attached GPU.
      topology: as `Topology` writes it; None for the number of devices of the mesh.
      options: XLA options beyond those of the workload, which they override.
      locked: autotune results are loaded, and should be complete.
      workspaces: bytes of library calls' workspaces, as of an autotune lock.
      memory_limit_bytes: the memory that XLA keeps the plan within; None for XLA's default.
      without_xla_patches: names of `XlaPatch` that are not made.
      executable_path: where the serialised executable goes; None to leave it out.
      result_path: where a `CompileRecord` or a `ChildError` goes.
      started_seconds: when the parent began, on the machine's monotonic clock.
    """

    reference: WorkloadReference
    program_path: str | None
    platform: str
    target_config: str | None
    topology: str | None
    options: Mapping[str, Any]
    locked: bool
    executable_path: str | None
    result_path: str
    started_seconds: float
    without_xla_patches: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    workspaces: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "reference"}
        return {**fields, "reference": self.reference.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CompileRequest":
        return cls(**{**data, "reference": WorkloadReference.from_json(data["reference"])})


@dataclass(frozen=True, kw_only=True)
class CompileRecord:
    """The result of a compile, except what is in XLA's own dump files.

    Attributes:
      outputs: with the shardings that XLA chose.
      requested_collectives: of the traced program, with absolute source paths.
      expectations: as `expectation_to_json` writes them; None for one of a user's own class.
      options: XLA options of the workload.
      memory_analysis: XLA's own totals in bytes: argument, output, alias, temp.
      fusion_without_result: the first fusion that the loaded autotune results do not cover.
      dropped_updates: values that the step stored in Python objects, which jax drops.
      xla_patches: names of `XlaPatch` that were made.
      sorts_undecided: whether XLA takes another decision about sorts on the device.
      seconds: wall time by stage: `load` (Python, jax, the module), `lower`, `compile`.
      refused: XLA's message if it planned the program and then refused it for want of memory; there
        is no memory analysis then.
      standard_library: its folder, for relative source paths.
    """

    workload: str
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]
    requested_collectives: tuple[RequestedCollective, ...]
    expectations: tuple[Mapping[str, Any] | None, ...]
    options: Mapping[str, str]
    mesh: Mapping[str, int] | None
    topology: str | None
    target_config: str
    memory_analysis: Mapping[str, int]
    fusion_without_result: str | None
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    standard_library: str
    dropped_updates: tuple[str, ...] = ()
    xla_patches: tuple[str, ...] = ()
    sorts_undecided: bool = False
    refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "arguments": [leaf.to_json() for leaf in self.arguments],
            "outputs": [leaf.to_json() for leaf in self.outputs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CompileRecord":
        collectives = map(RequestedCollective.from_json, data["requested_collectives"])
        return cls(
            **{
                **data,
                "arguments": tuple(map(ArgumentLeaf.from_json, data["arguments"])),
                "outputs": tuple(map(OutputLeaf.from_json, data["outputs"])),
                "requested_collectives": tuple(collectives),
                "expectations": tuple(data["expectations"]),
                "dropped_updates": tuple(data.get("dropped_updates", ())),
                "xla_patches": tuple(data.get("xla_patches", ())),
            }
        )


@dataclass(frozen=True)
class ChildError:
    """An exception in the child.

    Attributes:
      stage: what the child was doing: `start`, `import`, `parameters`, `topology`, `target`,
        `lower`, `compile` or `record`.
      type: the exception's class; empty for an XlapipeError, whose message is complete.
      frame: the innermost line of the user's own code.
    """

    stage: str
    type: str
    message: str
    frame: str | None
