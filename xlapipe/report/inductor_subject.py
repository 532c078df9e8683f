"""Dumps of torch Inductor as commands show them."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text

from xlapipe.errors import DumpError
from xlapipe.inductor.reader import InductorDump
from xlapipe.plans.wording import counted
from xlapipe.report.inductor_figures import inductor_figures
from xlapipe.report.subjects import ShowOptions

if TYPE_CHECKING:
    from xlapipe.expect import Finding


@dataclass(frozen=True)
class InductorSubject:
    """A dump of torch Inductor; `name` is for people."""

    name: str
    dump: InductorDump
    autotuning: ClassVar[str | None] = None
    closing_lines: ClassVar[Sequence[str]] = ()
    findings: "ClassVar[Sequence[Finding]]" = ()

    def figures(self, options: ShowOptions) -> dict[str, Any]:
        """The JSON of `xlapipe show`."""
        return inductor_figures(self._shown(options))

    def lines(self, options: ShowOptions) -> Iterator[Text]:
        """What `xlapipe show` prints on a terminal."""
        dump = self._shown(options)
        if options.names or options.kernel is not None:
            name = options.kernel or options.names[0]
            raise DumpError(
                f"{self.name}: expected a dump of XLA to ask for {name!r}, found one of torch "
                "Inductor; fix: --all prints every value with its lines"
            )
        from xlapipe.report.inductor_page import inductor_page
        from xlapipe.report.pages import page_lines

        module = f" --module {shlex.quote(options.module)}" if options.module is not None else ""
        command = "" if options.keys else f"xlapipe show {shlex.quote(self.name)}{module}"
        return page_lines(inductor_page(dump, command))

    def _shown(self, options: ShowOptions) -> InductorDump:
        """The dump, or the graphs of it whose name contains that of `--module`."""
        name, plans = options.module or "", self.dump.plans
        chosen = tuple(plan for plan in plans if name in plan.graph)
        if not chosen:
            raise DumpError(
                f"{self.dump.path}: expected a graph whose name contains {name!r}, found "
                f"{counted(len(plans), 'other')}; fix: name one of: "
                f"{', '.join(plan.graph for plan in plans):.400}"
            )
        return InductorDump(self.dump.path, chosen)

    def trace(self) -> bytes:
        """Nothing: no time is predicted."""
        raise DumpError(
            f"{self.name}: expected a dump of XLA for --trace, found one of torch Inductor, of "
            "which no time is predicted; fix: leave out --trace"
        )

    @property
    def check_notes(self) -> Sequence[str]:
        """What the findings do not cover."""
        from xlapipe.report.inductor_page import check_notes

        return check_notes(self.dump)

    @property
    def check_details(self) -> dict[str, Any]:
        """What the JSON of a check has beyond the findings."""
        graphs = [{"graph": plan.graph, "findings": plan.findings} for plan in self.dump.plans]
        return {"graphs": graphs}
