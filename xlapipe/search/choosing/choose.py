"""Chooses the fastest form of a step that fits: what `xlapipe choose` and `xlapipe.choose` do."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from xlapipe.compile.defaults import default_target
from xlapipe.compile.lowering.forward_graph import ForwardGraph
from xlapipe.compile.lowering.policy_change import (
    BLOCK,
    CHECKPOINT,
    LOSS,
    MICROBATCHES,
    SCAN,
)
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.errors import XlapipeError
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted
from xlapipe.search.candidate import Candidate, StepChange, job_of
from xlapipe.search.choosing.blocks import blocks_text
from xlapipe.search.choosing.compiles import (
    Compiles,
    forward_graph_at,
    items_of,
    target_device,
)
from xlapipe.search.choosing.forms import form_changes, refused_forms
from xlapipe.search.choosing.order import Order
from xlapipe.search.choosing.policies import (
    KEEP_ALL,
    PolicyPlace,
    applicable,
    block_changes,
    chosen_values,
    no_place_error,
    offloaded,
    places_of,
    presets,
)
from xlapipe.search.choosing.remedies import changes_of, donation_of, policies_for
from xlapipe.search.choosing.rows import lower_bound_notes, scan_notes, with_chosen
from xlapipe.search.choosing.saved import SavedValues, saved_values
from xlapipe.search.choosing.search import groups_of, saved_bytes, solutions
from xlapipe.search.rows import Row, SearchSettings
from xlapipe.search.sweep import Axis, combinations

# Budgets of the first search, as shares of what is saved now.
_SHARES = (0.75, 0.5, 0.35, 0.25, 0.15, 0.08, 0.03)
# Budgets between the largest plan that fits and the smallest that does not.
_BETWEEN = (0.25, 0.5, 0.75)
_MOST_OFFLOADED = 3
# Bytes of a policy in microbatches, by the product of the shares that each leaves: 1.1 to 1.6 for
# eight pairs of the GPT, ViT and U-Net in tests/steps/public_forms.py, untuned for an H200.
_NOT_SPLIT = 1.25


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The compiled rows, the fastest of each target first.

    Attributes:
      failed: those that do not compile.
      left_out: candidates that the budget did not allow, or that an interrupt left.
      interrupt: what ended the search early, such as Ctrl-C; None if the search completed.
      notes: advice in words.
      remedies: as of `choose`.
      saved: what the first step as written keeps for its backward pass; None without a gradient,
        and where nothing was recorded.
    """

    workload: str
    maximise: str | None
    rows: tuple[Row, ...]
    saved: SavedValues | None = None
    remedies: bool = False
    failed: tuple[Row, ...] = ()
    left_out: int = 0
    interrupt: KeyboardInterrupt | None = None
    notes: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether the user ended the search."""
        return self.interrupt is not None

    @property
    def chosen(self) -> tuple[Row, ...]:
        """One row of each target that a row fits."""
        return tuple(row for row in self.rows if row.chosen)


def choose(
    workload: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    remat: bool = False,
    offload: bool = False,
    remedies: bool = False,
    targets: Sequence[str] = (),
    maximise: str | None = None,
    search: SearchSettings | None = None,
    budget_minutes: float | None = None,
    compiles: int | None = None,
    prices: Mapping[str, float] | None = None,
    on_done: Callable[[Row], None] = lambda row: None,
    on_progress: Callable[[int, int, Sequence[Candidate]], None] = lambda *_: None,
) -> Choice:
    """Compiles forms of a step, and chooses the fastest one that fits each target.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: values of arguments of the workload's function.
      remat: try policies of `jax.checkpoint`.
      offload: try policies that move values to the host's memory.
      remedies: try changes that may save memory: donation, XLA options, policies of
        `jax.checkpoint`, half the batch, more devices.
      targets: names of `xlapipe targets`; the default target if empty.
      maximise: an argument whose value is the number of items of a step, e.g. `batch`: rows are
        ranked by predicted time per item.
      search: settings of every compile; without a target config, its target is one of `targets`,
        otherwise `targets` is the name of the config.
      budget_minutes: no compile starts after so many minutes.
      compiles: the largest number of compiles.
      prices: of one device for an hour, by target, in any currency.
      on_done: called with each row when its compile has ended.
      on_progress: as of `Compiles`.

    Raises:
      XlapipeError: an invalid argument, no candidate compiles, or rematerialisation is asked for
        and the step has no gradient, or saves nothing that a policy decides about.
    """
    axes = [Axis(name, tuple(values)) for name, values in (vary or {}).items()]
    targets = tuple(dict.fromkeys(targets)) or (default_target(),)
    bases = [base for target in targets for base in combinations(workload, axes, target)]
    _check(budget_minutes, compiles)
    if maximise is not None:
        for base in bases:
            items_of(base, maximise)
    compiled = Compiles(
        search or SearchSettings(),
        maximise,
        compiles,
        None if budget_minutes is None else time.monotonic() + 60 * budget_minutes,
        on_done,
        prices=prices or {},
        on_progress=on_progress,
    )
    rounds = _Search(compiled, bases, remat, offload, remedies)
    interrupt: KeyboardInterrupt | None = None
    try:
        rounds.run()
    except KeyboardInterrupt as error:
        interrupt = error
    if not compiled.rows:
        compiled.raise_first()
    rows = with_chosen(compiled.rows)
    return Choice(
        workload=workload,
        maximise=maximise,
        rows=rows,
        saved=rounds.saved,
        remedies=remedies,
        failed=tuple(compiled.failed),
        left_out=compiled.left_out,
        interrupt=interrupt,
        notes=tuple(dict.fromkeys((*lower_bound_notes(rows), *scan_notes(rows), *rounds.notes))),
    )


def _check(budget_minutes: float | None, compiles: int | None) -> None:
    if budget_minutes is not None and not 0 < budget_minutes < math.inf:
        raise XlapipeError(
            f"--budget {budget_minutes:g}: expected a number of minutes above 0; fix: leave it out "
            "for no budget"
        )
    if compiles is not None and compiles <= 0:
        raise XlapipeError(f"--compiles {compiles}: expected 1 or more")


class _Solution(NamedTuple):
    """A policy that was searched, and what it keeps of the values of a place."""

    place: PolicyPlace
    change: StepChange
    kept_bytes: int


@dataclass
class _Search:
    """Compiles the step as written, and meanwhile the forms that most likely win; then others.

    Attributes:
      bases: the step as written with each value of `--vary`, target by target.
      remat, offload, remedies: as of `choose`.
      notes: advice, filled while it runs.
      saved: as of `Choice`, filled while it runs.
    """

    compiles: Compiles
    bases: Sequence[Candidate]
    remat: bool
    offload: bool
    remedies: bool
    notes: list[str] = field(default_factory=list)
    saved: SavedValues | None = None
    _written: Program | None = None
    _graphs: dict[str, ForwardGraph] = field(default_factory=dict)
    _places: dict[str, tuple[PolicyPlace, ...]] = field(default_factory=dict)
    _solutions: list[_Solution] = field(default_factory=list)
    _order: Order = field(init=False)

    def __post_init__(self) -> None:
        self._order = Order(self.compiles, self._graphs)

    def run(self) -> None:
        if self.remat or self.offload or self.remedies:
            with scratch_folder("choose-") as folder:
                self._compile_forms(folder)
        else:
            self.compiles.run(self.bases)
        self._run((base, self._with_parts(base)) for base in self.bases)
        searched = [(base, self._places.get(base.values_text, ())) for base in self.bases]
        searched = [(base, places) for base, places in searched if places]
        if self.remat:
            self._run((base, self._between(base, own)) for base, own in searched)
        self._run((base, self._donating(base)) for base in self.bases)
        if self._order.left_out:
            self.notes.append(
                f"{counted(self._order.left_out, 'form')} not compiled: by bytes and operations "
                "they free no more memory than one that was, and take longer or do not fit."
            )

    def _run(self, lists: Iterable[tuple[Candidate, Iterable[StepChange]]]) -> None:
        """Compiles the first change of each candidate, then the second ones, and so on."""
        changed = [[replace(base, change=change) for change in own] for base, own in lists]
        in_turn = [*filter(None, chain.from_iterable(zip_longest(*changed)))]
        self.compiles.run(self._order.new(in_turn))

    def _compile_forms(self, folder: Path) -> None:
        """Compiles the step as written, and forms as soon as its forward pass is known.

        Where it cannot be recorded, perhaps it can be compiled.
        """
        of_one_target = [base for base in self.bases if base.target == self.bases[0].target]
        notes = {base.values_text: folder / f"{n}.json" for n, base in enumerate(of_one_target)}
        everything = folder / "everything.json"

        def note_for(candidate: Candidate) -> Path | None:
            if candidate.target != self.bases[0].target or candidate.change is None:
                return notes.get(candidate.values_text) if candidate in of_one_target else None
            return everything if candidate.change.text.startswith(KEEP_ALL) else None

        forms, compiles = self._forms(notes, everything), self.compiles
        if compiles.search.scheduler is not None:  # its workers cannot write here
            here = replace(compiles.search, scheduler=None)
            compiles.run(self.bases, here, note_for, self._keep_written)
            compiles.run(forms)
        else:
            in_turn = chain(self.bases, forms)
            compiles.run(in_turn, compiles.search, note_for, self._keep_written)
        if self.remedies and not compiles.rows:
            compiles.failed.clear()
            in_turn = chain(self.bases, self._forms({}, everything))
            compiles.run(in_turn, on_first_program=self._keep_written)

    def _forms(self, notes: Mapping[str, Path], everything: Path) -> Iterator[Candidate | None]:
        """Forms to compile, the likely answer first; None while more is to be known for the next.

        The first ones need no solver, so that they start while the step as written is compiled.
        """
        yield from self._recorded(notes, everything)
        self._find_places()
        own = [(base, self._places.get(base.values_text, ())) for base in self.bases]
        quick = [
            replace(base, change=change)
            for base, places in own
            if self.remat or self.remedies
            for change in chain(block_changes(places), *map(presets, places[:1]))
            if not (self.remedies and change.text.startswith(KEEP_ALL))
        ]
        yield from self._order.new(quick, most=self.compiles.at_once)
        while self.remedies and self._written is None and self.compiles.running:
            yield None
        changed = [
            [replace(base, change=change) for change in self._changes(base, places)]
            for base, places in own
        ]
        in_turn = chain.from_iterable(zip_longest(*changed))
        yield from self._order.new([*quick, *filter(None, in_turn)])

    def _recorded(self, notes: Mapping[str, Path], everything: Path) -> Iterator[Candidate | None]:
        """Reads the forward passes that children record, and waits for them."""
        for base in self.bases[: len(notes)]:
            note = notes[base.values_text]
            while not note.exists() and base in self.compiles.running:
                yield None
            if not note.exists():
                continue
            graph = forward_graph_at(note)
            if graph.program_sha256 is not None:
                self.compiles.unchanged[base.values_text] = graph.program_sha256
            self._graphs[base.values_text] = graph
            if (self.remat or self.offload) and any(s.kind == CHECKPOINT for s in graph.sites):
                # What its own policies leave out is seen only if everything is kept.
                place, *_ = places_of(graph)
                everything.unlink(missing_ok=True)
                own = (change for change in presets(place) if change.text.startswith(KEEP_ALL))
                kept = replace(base, change=next(own))
                yield from self._order.new([kept])
                while not everything.exists() and kept in self.compiles.running:
                    yield None
                if everything.exists():
                    self._graphs[base.values_text] = forward_graph_at(everything)

    def _find_places(self) -> None:
        """Finds where each step takes a policy; an error if there is no place that is asked for."""
        workload = self.bases[0].reference.name
        places = {values: places_of(graph) for values, graph in self._graphs.items()}
        try:
            if places and not any(places.values()):
                raise no_place_error(workload, list(self._graphs.values()))
            for values, graph in self._graphs.items():
                self._places[values], messages = applicable(workload, graph, places[values])
                self.notes += () if self.remedies else messages
        except XlapipeError as error:
            if not self.remedies:
                raise
            if any(v.needed for graph in self._graphs.values() for v in graph.values):
                self.notes.append(f"No policy of jax.checkpoint was tried: {error}")
        for graph in self._graphs.values():
            if graph.repeated and not self.remedies:
                blocks = blocks_text(graph.repeated, lines=True)
                self.notes.append(f"Called repeatedly in the forward pass: {blocks}.")

    def _keep_written(self, program: Program) -> None:
        self._written = program

    def _changes(self, base: Candidate, places: Sequence[PolicyPlace]) -> Iterator[StepChange]:
        """Changes of a step, those that are quick to make first."""
        if self.remat or self.offload:
            yield from self._policies(places, base.target)
            if self.remat:
                yield from block_changes(places)
        if not self.remedies or self._written is None:
            return
        job = job_of(base, self.compiles.search.compile)
        changes = [*changes_of(self._written, job)]
        yield from (change for change in changes if change.is_same_step)
        graph = self._graphs.get(base.values_text)
        if graph is not None:
            self.saved = self.saved or saved_values(self._written, graph, base.target)
            yield from form_changes(self._written, graph)
            self.notes += refused_forms(self._written, graph)
        if places:
            yield from policies_for(base.target, places)
        yield from (change for change in changes if not change.is_same_step)

    def _with_parts(self, base: Candidate) -> Iterator[StepChange]:
        """The fastest and the smallest policy with the loss in blocks, and in microbatches.

        Only if no plan fits as written, and microbatches if none that fits is as fast already.
        """
        rows = sorted(self.compiles.rows_of(base), key=lambda row: row.rank)
        written = next((row for row in rows if row.candidate.change is None), None)
        policies = _of_kinds(rows, SCAN, BLOCK, CHECKPOINT)
        if not policies or (written is not None and written.fits):
            return
        fastest = next((row for row in rows if row.fits), None)
        smallest = min(policies, key=lambda row: row.memory.total_bytes)
        for row in policies[:1] if smallest is policies[0] else (policies[0], smallest):
            assert row.candidate.change is not None
            for loss in filter(None, (own.candidate.change for own in _of_kinds(rows, LOSS)[:1])):
                yield row.candidate.change.joined(loss)
            if written is not None and (fastest is None or row.rank < fastest.rank):
                parts = _fewest(_of_kinds(rows, MICROBATCHES), row, written)
                if parts is not None:
                    yield parts.joined(row.candidate.change)

    def _donating(self, base: Candidate) -> Iterator[StepChange]:
        """Donation, where it is not stated, with the rows that are the best ones with it."""
        donation = donation_of(self._written) if self._written is not None else None
        if donation is None:
            return
        change, size_bytes = donation
        rows = sorted(self.compiles.rows_of(base), key=lambda row: row.rank)
        for fits in (True, False):
            for row in rows:
                own = row.candidate.change
                left_bytes = row.memory.headroom_bytes + size_bytes
                if row.fits is fits and row.is_same_step and left_bytes >= 0:
                    if own is None or "donate" not in own.arguments:
                        yield own.joined(change) if own is not None else change
                    break

    def _policies(self, places: Sequence[PolicyPlace], target: str) -> Iterator[StepChange]:
        for place in (place for place in places if place.searched):
            if self.remat:
                searched = self._searched(place, _SHARES, target)
                # Both kinds first: a budget may end the search early.
                yield from filter(None, chain.from_iterable(zip_longest(presets(place), searched)))
            if self.remat and self.offload:
                yield from self._searched(place, _SHARES, target, offload=True)
            if self.offload:
                groups = [g for g in groups_of(place.values) if g.saved_bytes][:_MOST_OFFLOADED]
                for number in range(1, len(groups) + 1):
                    yield offloaded(groups[:number], place)

    def _searched(
        self, place: PolicyPlace, shares: Sequence[float], target: str, *, offload: bool = False
    ) -> Iterator[StepChange]:
        device = target_device(target)
        for kept in solutions(place.values, shares, device, offload=offload):
            change = chosen_values(kept, place)
            if not offload:
                self._solutions.append(_Solution(place, change, kept.kept_bytes))
            yield change

    def _between(self, base: Candidate, places: Sequence[PolicyPlace]) -> Iterator[StepChange]:
        """Policies between the largest searched plan that fits and the smallest that does not.

        None where a row that fits is as fast as both, and no larger.
        """
        rows = {row.candidate.change: row for row in self.compiles.rows_of(base)}
        for place in (place for place in places if place.searched):
            whole = saved_bytes(place.values)
            own = [s for s in self._solutions if s.place is place and s.change in rows]
            fitting = [s for s in own if rows[s.change].fits]
            low = max(fitting, key=lambda s: s.kept_bytes, default=None)
            high = min(
                (s for s in own if s not in fitting), key=lambda s: s.kept_bytes, default=None
            )
            high_bytes = high.kept_bytes if high is not None else whole
            if low is None or low.kept_bytes >= high_bytes:
                continue
            ends = rows[low.change], rows.get(high.change if high is not None else None)
            if any(row.fits and row.beats(*filter(None, ends)) for row in rows.values()):
                self._order.left_out += len(_BETWEEN)
                continue
            step_bytes = high_bytes - low.kept_bytes
            shares = [(low.kept_bytes + part * step_bytes) / whole for part in _BETWEEN]
            yield from self._searched(place, shares, base.target)


def _of_kinds(rows: Iterable[Row], *kinds: str) -> list[Row]:
    """The rows that one change of a kind makes alone."""
    changes = ((row, row.candidate.change) for row in rows)
    policies = ((row, change.policy) for row, change in changes if change is not None)
    return [row for row, own in policies if own and own.kind in kinds and own.also is None]


def _fewest(microbatches: Sequence[Row], policy: Row, written: Row) -> StepChange | None:
    """The fewest microbatches in which a policy probably fits, else the most; None without any."""
    limit_bytes = policy.memory.total_bytes + policy.memory.headroom_bytes
    whole_bytes = _NOT_SPLIT * policy.memory.total_bytes / written.memory.total_bytes
    smaller = sorted(microbatches, key=lambda row: -row.memory.total_bytes)
    fitting = (row for row in smaller if whole_bytes * row.memory.total_bytes <= limit_bytes)
    row = next(fitting, smaller[-1] if smaller else None)
    return row.candidate.change if row is not None else None
