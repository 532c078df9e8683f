"""A plan with the questions that people ask about it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.api.answer import Answer, answer_of
from xlapipe.api.shown_plan import Rows, ShownPlan, framed, html_table
from xlapipe.dump.dump import Dump
from xlapipe.errors import XlapipeError
from xlapipe.expect import Aliased, Donated, Expectation, check_all
from xlapipe.plans import Collective, Gemm, GemmBackend, Plan, Program, Totals
from xlapipe.plans.copies import Copy, find_copies
from xlapipe.plans.donation import Donation, donations
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.peak import Peak, peak_of
from xlapipe.plans.second_call import Recompile, recompiles
from xlapipe.report.target_text import short_label
from xlapipe.report.units import rounded, seconds_text
from xlapipe.report.xla_subject import XlaSubject

if TYPE_CHECKING:
    from xlapipe.api.graphs_plan import GraphsPlan
    from xlapipe.report.time_figures import StepTime

# The same set as the GEMM policy `cublas`: one library with several entry points.
_CUBLAS = (GemmBackend.CUBLAS, GemmBackend.CUBLASLT, GemmBackend.CUBLASLT_F8)

_SOURCE_LINES = 10


class StepPlan(ShownPlan):
    """What `xlapipe.plan` and `xlapipe.read` return. Bytes are ints, on one device.

    In a notebook it shows itself: totals, the peak by source line and the map of the memory.

    Attributes:
      opened: the files that the plan was read from.
    """

    _further_tables = ("peak", "lines", "time", "timeline", "copies", "modules")

    def __init__(self, opened: XlaSubject, expectations: Sequence[Expectation] = ()) -> None:
        self.opened = opened
        self._expectations = tuple(expectations)

    def __repr__(self) -> str:
        about = ", ".join(
            filter(None, (self.opened.program.title, self.opened.program.tuning_word))
        )
        return f"<plan of {about}: {self.total_allocation_bytes:,} B>"

    @property
    def program(self) -> Program:
        """The plan with the pytree paths of arguments and outputs."""
        return self.opened.program

    @property
    def plan(self) -> Plan:
        """Allocations, aliases, thunks and optimised HLO."""
        return self.program.plan

    @property
    def totals(self) -> Totals:
        """Sums of the allocations' sizes, by kind."""
        return self.plan.totals

    @property
    def total_allocation_bytes(self) -> int:
        """All allocations: what XLA allocates for one call."""
        return self.totals.total_allocation_bytes

    @property
    def temp_bytes(self) -> int:
        """The temporary memory, in which values share bytes over time."""
        return self.totals.temp_bytes

    @property
    def tuned(self) -> bool:
        """Whether a device's autotune results were used; if not, GEMM tiles are XLA's defaults."""
        return self.opened.dump is not None and self.opened.dump.manifest.tuned

    @property
    def fits(self) -> bool | None:
        """Whether the plan fits the memory that its device leaves to XLA; None if that is unknown.

        XLA's own refusal counts too.
        """
        from xlapipe.report.overview.overview import Overview

        if self.opened.dump is not None and self.opened.dump.manifest.refused is not None:
            return False
        overview = Overview(self.opened)
        memory = overview.memory
        return None if memory is None else overview.total_bytes <= memory.usable_bytes

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation of the predicted step, from 0 to 1; None if it is unknown."""
        prediction = self.opened.study.prediction_with_mfu
        return prediction.mfu if prediction is not None else None

    @cached_property
    def peak(self) -> Peak:
        """What is in memory at the peak: `peak.values`, and by source line `peak.by_source`."""
        return peak_of(self.program)

    @cached_property
    def time(self) -> "StepTime":
        """The time of a step, as `xlapipe show --time` has it: floor, predicted, measured; seconds.

        Raises:
          XlapipeError: the plan has no complete HLO module.
        """
        from xlapipe.report.time_figures import step_time

        time = step_time(self.opened)
        if time is None:
            raise XlapipeError(
                f"{self!r}: no time is computed, because the plan has no complete HLO module; fix: "
                "read a dump that xlapipe made"
            )
        return time

    @cached_property
    def figures(self) -> dict[str, Any]:
        """What `xlapipe show --json` prints."""
        from xlapipe.report.plan_figures import figures_of
        from xlapipe.report.records import plain_data

        figures: dict[str, Any] = plain_data(figures_of(self.opened))
        return figures

    def table(self, name: str) -> Rows:
        """The rows of one list of `figures`, e.g. `allocations`, `gemms`, `donations`, `arguments`.

        Args:
          name: name of the list, `peak` for the values at the peak, `lines` for the same by
            source line and purpose, as `xlapipe show` prints them, `time` for the kernels, the
            longest first, `timeline` for what runs when in the predicted step, `copies` for values
            that are only moved, the largest first, or `modules` for bytes and times of each scope,
            and of each class whose methods were called: Flax's, Equinox's and the user's.

        Returns:
          A list of dictionaries, as `pandas.DataFrame` takes it.

        Raises:
          XlapipeError: there is no such list.
        """
        if name == "peak":
            return Rows(asdict(value) for value in self.peak.values)
        if name == "lines":
            return Rows(self.figures["overview"]["by_line"])
        if name == "time":
            from xlapipe.report.time_figures import longest_first

            return Rows(map(asdict, sorted(self.time.kernels, key=longest_first)))
        if name == "copies":
            return Rows(map(asdict, self.copies()))
        if name == "modules":
            from xlapipe.report.modules import Modules

            return Rows(map(asdict, Modules(self.opened).rows))
        if name == "timeline":
            from xlapipe.report.timeline import timeline_rows

            return Rows(map(asdict, timeline_rows(self.opened)))
        return super().table(name)

    @property
    def donations(self) -> tuple[Donation, ...]:
        """The outcome of the donation of each donated leaf."""
        return donations(self.program)

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """What compiles the step again when its outputs go in again; empty if nothing does.

        Raises:
          XlapipeError: the dump is from before this was recorded.
        """
        rows = recompiles(self.program)
        if rows is None:
            raise XlapipeError(
                f"{self!r}: whether a second call compiles is not recorded; fix: dump it again"
            )
        return rows

    def aliases(self, name: str) -> Answer:
        """Whether every argument leaf named `name` is donated and aliased; see `Aliased`."""
        return self._answer(Aliased(name))

    def donated(self, name: str, *, copies_up_to_bytes: int | None = None) -> Answer:
        """As `aliases`; also checks that no copy of half a leaf or more remains; see `Donated`.

        Args:
          copies_up_to_bytes: ignore copies of at most this size; None for the smallest ones that
            total at most a thousandth of the leaves' bytes.
        """
        return self._answer(Donated(name, copies_up_to_bytes))

    def check(self, *expectations: Expectation) -> Answer:
        """Whether all of `expectations` hold; default: the expectations of the workload.

        Raises:
          XlapipeError: there are no expectations.
        """
        expectations = expectations or self._expectations
        if not expectations:
            raise XlapipeError(
                f"{self!r}: no expectations to check; fix: pass expectations of xlapipe.expect, or "
                "use a Workload that has some"
            )
        return self._answer(*expectations)

    def _answer(self, *expectations: Expectation) -> Answer:
        return answer_of(check_all(expectations, self.program))

    def gemms(self, backend: str | None = None) -> tuple[Gemm, ...]:
        """Matrix products, of one backend if given; `cublas` includes cuBLASLt.

        Args:
          backend: a value of `GemmBackend`.

        Raises:
          XlapipeError: unknown backend.
        """
        if backend is None:
            return self.plan.gemms
        known = {member.value: (member,) for member in GemmBackend} | {"cublas": _CUBLAS}
        if backend not in known:
            raise XlapipeError(f"unknown gemm backend {backend!r}; known: {', '.join(known)}")
        return tuple(gemm for gemm in self.plan.gemms if gemm.backend in known[backend])

    def collectives(self, kind: str | None = None) -> tuple[Collective, ...]:
        """Collectives, of one kind if given.

        Args:
          kind: XLA's name, e.g. `all-gather`.

        Raises:
          XlapipeError: unknown kind, or a plan without an HLO module.
        """
        if kind is not None and kind not in COLLECTIVES:
            raise XlapipeError(
                f"unknown kind of collective {kind!r}; known: {', '.join(sorted(COLLECTIVES))}"
            )
        if self.plan.collectives is None:
            raise XlapipeError(f"{self!r}: without an HLO module its collectives are unknown")
        return tuple(
            collective for collective in self.plan.collectives if kind in (None, collective.kind)
        )

    def copies(self, above_bytes: int = 0) -> tuple[Copy, ...]:
        """Copies of more than `above_bytes`: values written by instructions that only move data."""
        return tuple(copy for copy in find_copies(self.plan) if copy.copied_bytes > above_bytes)

    def to_html(self) -> str:
        """The page of `xlapipe report`: one HTML document that needs no network."""
        from xlapipe.report.html_page import render_page

        return render_page([replace(self.opened, given_name=self.opened.program.title)])

    def _repr_html_(self) -> str:
        """All but the page is readable where frames and scripts are not allowed."""
        from xlapipe.report.html_page import render_page

        totals = self.plan.totals
        kinds = {
            "total": totals.total_allocation_bytes,
            "arguments": totals.parameter_bytes,
            "outputs": totals.live_out_bytes,
            "of these aliased": totals.aliased_bytes,
            "temporary": totals.temp_bytes,
        }
        sizes = {name: rounded(size) for name, size in kinds.items()}
        prediction = self.opened.prediction
        if prediction is not None and prediction.step_seconds is not None:
            over = f", network {prediction.network_name}" if prediction.network else ""
            sizes["predicted time"] = seconds_text(prediction.step_seconds) + over
        lines = [
            {"bytes at the peak": row.total_bytes, "": rounded(row.total_bytes), "line": row.source}
            for row in self.peak.by_source[:_SOURCE_LINES]
        ]
        tuning = escape(short_label(self.opened.program.autotuning))
        return (
            f"<p><b>{escape(self.opened.program.title)}</b>, {tuning}</p>{html_table([sizes])}"
            f"{html_table(lines)}{framed(render_page([self.opened], map_only=True))}"
        )


def read(path: str | Path) -> "StepPlan | GraphsPlan":
    """The plan of a dump directory, an `.hlo.pb`, or a buffer assignment that XLA wrote.

    Needs neither jax nor a GPU.

    Returns:
      For a dump of torch Inductor a GraphsPlan, which has `figures`, `table`, `check` and `to_html`
      as a StepPlan, and a plan for each of its `graphs`.

    Raises:
      DumpError: a file is missing, damaged, or made by a newer xlapipe.
      PlanMismatchError: the plan breaks an invariant, or totals differ from XLA's own.
    """
    from xlapipe.inductor.open_path import is_inductor_dump, open_path

    path = Path(path)
    if is_inductor_dump(path):
        # 30 modules, which no other dump needs.
        from xlapipe.api.graphs_plan import GraphsPlan
        from xlapipe.inductor.reader import read_inductor

        return GraphsPlan(read_inductor(path))
    opened = open_path(path)
    return StepPlan(XlaSubject(opened), opened.expectations if isinstance(opened, Dump) else ())
