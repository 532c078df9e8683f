"""What commands need of a dump of any compiler, and the one place that opens one of either."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.errors import DumpError
from xlapipe.inductor.open_path import is_inductor_dump, open_path
from xlapipe.time.prediction_settings import DEFAULT_SETTINGS, PredictionSettings

if TYPE_CHECKING:
    from xlapipe.report.inductor_subject import InductorSubject
    from xlapipe.report.xla_subject import XlaSubject


@dataclass(frozen=True)
class ShowOptions:
    """What `xlapipe show` prints instead of the overview.

    Attributes:
      everything: all of these but `time`, and what has no option.
      kernel: instead of all else, what the predicted time of this kernel is made of.
      names: instead of all else, what these values, source lines and arguments are.
      module: part of the name of the graphs to show, for a dump of torch Inductor with several.
    """

    allocations: bool = False
    donation: bool = False
    gemms: bool = False
    collectives: bool = False
    time: bool = False
    everything: bool = False
    kernel: str | None = None
    names: tuple[str, ...] = ()
    module: str | None = None
    width: int = 80

    @property
    def keys(self) -> list[str]:
        """Keys of the sections of the plan that are shown instead of the overview."""
        return [
            key
            for option, keys in _KEYS.items()
            if getattr(self, option) or (self.everything and option != "time")
            for key in keys
        ]


# Sections by the option that shows them.
_KEYS = {
    "allocations": ("totals", "allocations"),
    "donation": ("donation",),
    "gemms": ("gemms",),
    "collectives": ("collectives",),
    "everything": ("peak", "copies", "host", "memories", "thunks"),
    "time": ("time",),
}


def open_subject(
    path: Path, settings: PredictionSettings = DEFAULT_SETTINGS, *, name: str = ""
) -> "XlaSubject | InductorSubject":
    name = name or str(path)
    if is_inductor_dump(path):
        # 30 modules, which no other dump needs.
        from xlapipe.inductor.reader import read_inductor
        from xlapipe.report.inductor_subject import InductorSubject

        return InductorSubject(name, read_inductor(path))
    from xlapipe.report.xla_subject import XlaSubject, settings_for

    program = open_path(path)
    return XlaSubject(program, settings_for(program, settings), name)


def report_page(paths: Sequence[Path]) -> str:
    """The HTML document on the dumps at `paths`, which are of one compiler."""
    from xlapipe.report.html_page import render_page, render_tables_page

    of_inductor = [path for path in paths if is_inductor_dump(path)]
    if not of_inductor:
        from xlapipe.report.xla_subject import XlaSubject

        return render_page([XlaSubject(open_path(path)) for path in paths])
    if len(of_inductor) < len(paths):
        raise DumpError(
            f"{of_inductor[0]}: expected dumps of one compiler, found {len(of_inductor)} of torch "
            f"Inductor and {len(paths) - len(of_inductor)} of XLA; fix: `xlapipe diff` takes one "
            "of each"
        )
    from xlapipe.inductor.reader import read_inductor
    from xlapipe.report.inductor_page import inductor_page

    return render_tables_page([inductor_page(read_inductor(path)) for path in paths])
