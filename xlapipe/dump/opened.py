"""The plan of XLA at a path, and which compiler wrote what is there."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.devices.platforms.dump_files import STAGE_TITLES
from xlapipe.devices.targets.device import Device
from xlapipe.devices.targets.network import network_stated
from xlapipe.dump.dump import PLAN, Dump, read_checked_file, read_file
from xlapipe.dump.readers.file_contents import read_source
from xlapipe.dump.readers.files import files_at
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans import HloModule, Plan
from xlapipe.plans.program import Program
from xlapipe.time.cost import StepCost
from xlapipe.time.predict import Prediction
from xlapipe.time.predict.calibration import Calibration
from xlapipe.time.predict.study import Study, device_of

if TYPE_CHECKING:
    from xlapipe.dump.time_record import TimeRecord

# In front of its first section, plan.txt names what the plan was made with.
_FIRST_SECTION = "\n["


@dataclass(frozen=True, slots=True)
class StageText:
    """The text of one stage of the compiler.

    Attributes:
      title: for people.
    """

    title: str
    text: str


@dataclass(frozen=True)
class Opened:
    """A path that was read.

    Attributes:
      dump: None for files that xlapipe did not write. Names of arguments are then HLO's, and
        target, options and expectations are unknown.
      target: a name of the catalogue, for the speeds of the GPU instead of the dump's own target.
      calibration: for predicted times; by default that of the target in `xlapipe.time.predict`.
      unknown_trips: trips of each loop whose number the plan does not state.
      timed: seconds of a launch of kernels that ran before; see `xlapipe.report.timed_kernels`.
      host: host time, relative to the calibration's host.
      given_name: for people, where the path is not.
    """

    path: Path
    program: Program
    dump: Dump | None = None
    target: str | None = None
    calibration: Calibration | None = None
    unknown_trips: int | None = None
    timed: Mapping[str, float] | None = None
    host: float = 1.0
    given_name: str = ""

    @classmethod
    def of_dump(cls, dump: Dump) -> "Opened":
        """A dump that was read or made before."""
        return cls(dump.path, dump.program, dump)

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.given_name or str(self.path)

    @property
    def plan(self) -> Plan:
        return self.program.plan

    @property
    def notes(self) -> tuple[str, ...]:
        """What XLA computes again, what was not read, and what is particular to the program."""
        again, total = self.study.recomputation, self.plan.totals.total_allocation_bytes
        return (
            *([again.text(total)] if again is not None else []),
            *self.plan.notes,
            *(self.dump.manifest.notes if self.dump is not None else ()),
        )

    @property
    def title(self) -> str:
        """Workload and target if known, else the file's name."""
        if self.dump is None:
            return self.path.name or str(self.path)
        manifest = self.dump.manifest
        return f"{manifest.workload} on {manifest.device}"

    @property
    def autotuning(self) -> str:
        """The label that every display of the plan has."""
        return self.dump.manifest.autotuning if self.dump is not None else "unknown"

    @property
    def tuning_word(self) -> str:
        """`tuned`, `untuned`, `predicted tuning`; empty where plans do not depend on tuning."""
        if self.dump is None or self.dump.manifest.tuned_or_none is None:
            return ""
        return self.autotuning.partition(" (")[0].partition(" on ")[0]

    @property
    def device(self) -> Device | None:
        """The GPU that the plan is for; None if the target is unknown, or is not a GPU."""
        return self.study.device

    @cached_property
    def study(self) -> Study:
        """Cost and predicted time of the plan."""
        own = self.dump.manifest.target if self.dump is not None else None
        return Study(
            self.plan,
            device_of(own, self.target_config_text, self.target),
            self.calibration,
            self.unknown_trips,
            self.timed,
            network_stated(Path.cwd()),
            self.host,
            self._lowered,
        )

    def _lowered(self) -> HloModule | None:
        """The module before optimisation; None if the files lack it."""
        from xlapipe.dump.readers.hlo_text import parse_hlo  # which a dump with a proto needs here

        text = self.hlo_before
        if text is None:
            return None
        return parse_hlo(SourceText(f"{self.path}/before_optimizations.txt", text)).module

    @property
    def target_config_text(self) -> str | None:
        """The configuration of the device; None if the dump has none."""
        return self.dump.target_config if self.dump is not None else None

    @property
    def step_cost(self) -> StepCost | None:
        """What a step must cost; None if the dump has no complete HLO module."""
        return self.study.cost

    @property
    def prediction(self) -> Prediction | None:
        """The predicted time of a step; None without a complete HLO module, or for no known GPU."""
        return self.study.prediction

    @cached_property
    def time_record(self) -> "TimeRecord | None":
        """Measured times; None if absent, or of another plan.

        Raises:
          DumpError: the record is damaged, or of another device than the dump.
        """
        from xlapipe.dump.time_record import read_time_record

        if self.dump is None or self.step_cost is None:
            return None
        record = read_time_record(self.dump.path)
        if record is None:
            return None
        record.refuse_unless_of(self.dump.manifest.target_description, where=self.dump.path)
        kernels = {kernel.name for kernel in self.step_cost.kernels}
        return record if record.seconds_of.keys() <= kernels else None

    @cached_property
    def stage_texts(self) -> tuple[StageText, ...]:
        """The texts of the compiler's stages, in their order.

        Raises:
          DumpError: a text is damaged, or was edited after the manifest was written.
        """
        texts = ((title, self._text(name)) for name, title in STAGE_TITLES.items())
        return tuple(StageText(title, text) for title, text in texts if text is not None)

    @cached_property
    def hlo_before(self) -> str | None:
        """The module before optimisation, as XLA prints it; None if it was not dumped."""
        return self._text("before_optimizations.txt")

    @cached_property
    def hlo_after(self) -> str | None:
        """The module after optimisation, as XLA prints it; None if it was not dumped."""
        return self._text("after_optimizations.txt")

    @property
    def plan_sections(self) -> str | None:
        """plan.txt from its first section on; None for a dump that xlapipe did not write."""
        if self.dump is None:
            return None
        text = read_file(self.dump.path, PLAN).decode(errors="replace")
        return text[text.find(_FIRST_SECTION) :]

    def _text(self, name: str) -> str | None:
        """The text that is in a Dump under `name`, or in the file of XLA's that became it."""
        if self.dump is not None:
            if name not in self.dump.manifest.files:
                return None
            content = read_checked_file(self.dump.path, self.dump.manifest, name)
            return content.decode(errors="replace")
        path = self._xla_paths.get(name)
        return read_source(path).text if path is not None else None

    @cached_property
    def _xla_paths(self) -> Mapping[str, Path | None]:
        """Files that XLA wrote, by the name that they have in a Dump."""
        files = files_at(self.path)
        folder = self.path if self.path.is_dir() else self.path.parent
        before = [path for path in folder.glob("*before_optimizations.txt*") if path.is_file()]
        return {
            # Its name does not state the module, so it is this module's only if it is the only one.
            "before_optimizations.txt": before[0] if len(before) == 1 else None,
            "after_optimizations.txt": files.hlo,
            "thunk_sequence.txt": files.thunks,
            "buffer-assignment.txt": files.assignment,
        }
