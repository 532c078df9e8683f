"""Chooses the fastest form of a step that fits: what `xlapipe choose` and `xlapipe.choose` do."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from xlapipe.compile.defaults import DEFAULT_TARGET
from xlapipe.compile.lowering.forward_graph import ForwardGraph
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.devices.targets.device import Device, device_of_target
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import read_json
from xlapipe.files.typed_data import typed
from xlapipe.search.candidate import Candidate, Change
from xlapipe.search.choosing.blocks import blocks_text
from xlapipe.search.choosing.compiles import Compiles, items_of
from xlapipe.search.choosing.policies import (
    BLOCK,
    GRADIENT,
    KEEP_ALL,
    Place,
    applicable,
    block_changes,
    chosen_values,
    no_place_error,
    offloaded,
    offloaded_inputs,
    places_of,
    presets,
)
from xlapipe.search.choosing.rows import ChoiceRow, lower_bound_notes, with_chosen
from xlapipe.search.choosing.search import groups_of, saved_bytes, solutions
from xlapipe.search.choosing.xla_options import option_changes, without_limit
from xlapipe.search.rows import SearchSettings
from xlapipe.search.sizing.cliff import EXPECTED_SHARE
from xlapipe.search.sweep import Axis, combinations

# Budgets of the first search, as shares of what is saved now.
_SHARES = (0.75, 0.5, 0.35, 0.25, 0.15, 0.08, 0.03)
# Budgets between the largest plan that fits and the smallest that does not.
_BETWEEN = (0.25, 0.5, 0.75)
_MOST_OFFLOADED = 3
# The GPU whose speeds order candidates of a target without known ones.
_REFERENCE = "h200"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The compiled rows, the fastest of each target first.

    Attributes:
      failed: candidates that do not compile, with the error.
      left_out: candidates that the budget did not allow, or that an interrupt left.
      interrupt: what ended the search early, such as Ctrl-C; None if the search completed.
      notes: advice in words.
    """

    workload: str
    maximise: str | None
    rows: tuple[ChoiceRow, ...]
    failed: tuple[tuple[Candidate, XlapipeError], ...] = ()
    left_out: int = 0
    interrupt: KeyboardInterrupt | None = None
    notes: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether the user ended the search."""
        return self.interrupt is not None

    @property
    def chosen(self) -> tuple[ChoiceRow, ...]:
        """One row of each target that a row fits."""
        return tuple(row for row in self.rows if row.chosen)


@dataclass(frozen=True)
class Changes:
    """Which kinds of changes are tried.

    Attributes:
      remat: policies of `jax.checkpoint`.
      offload: policies that move values to the host's memory.
      options: XLA options.
    """

    remat: bool = False
    offload: bool = False
    options: bool = False


def choose(
    workload: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    changes: Changes | None = None,
    targets: Sequence[str] = (),
    maximise: str | None = None,
    search: SearchSettings | None = None,
    budget_minutes: float | None = None,
    compiles: int | None = None,
    prices: Mapping[str, float] | None = None,
    on_done: Callable[[Candidate, ChoiceRow | XlapipeError], None] = lambda candidate, row: None,
) -> Choice:
    """Compiles forms of a step, and chooses the fastest one that fits each target.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: values of arguments of the workload's function.
      changes: kinds of changes to try; none by default.
      targets: names of `xlapipe targets`; the default target if empty.
      maximise: an argument whose value is the number of items of a step, e.g. `batch`: rows are
        ranked by predicted time per item.
      search: settings of every compile; without a target config, its target is one of `targets`,
        otherwise `targets` is the name of the config.
      budget_minutes: no compile starts after so many minutes.
      compiles: the largest number of compiles.
      prices: of one device for an hour, by target, in any currency.
      on_done: called with each row, or the error of its compile.

    Raises:
      XlapipeError: an invalid argument, no candidate compiles, or rematerialisation is asked for
        and the step has no gradient, or saves nothing that a policy decides about.
    """
    axes = [Axis(name, tuple(values)) for name, values in (vary or {}).items()]
    targets = tuple(dict.fromkeys(targets)) or (DEFAULT_TARGET,)
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
    )
    rounds = _Search(compiled, changes or Changes(), bases, len(bases) // len(targets))
    interrupt: KeyboardInterrupt | None = None
    try:
        rounds.run()
    except KeyboardInterrupt as error:
        interrupt = error
    if not compiled.rows and compiled.failed:
        raise compiled.failed[0][1]
    rows = with_chosen(compiled.rows)
    return Choice(
        workload=workload,
        maximise=maximise,
        rows=rows,
        failed=tuple(compiled.failed),
        left_out=compiled.left_out,
        interrupt=interrupt,
        notes=tuple(dict.fromkeys((*lower_bound_notes(rows), *rounds.notes))),
    )


def _check(budget_minutes: float | None, compiles: int | None) -> None:
    if budget_minutes is not None and not 0 < budget_minutes < math.inf:
        raise XlapipeError(
            f"--budget {budget_minutes:g}: expected a number of minutes above 0; fix: leave it out "
            "for no budget"
        )
    if compiles is not None and compiles <= 0:
        raise XlapipeError(f"--compiles {compiles}: expected 1 or more")


@dataclass
class _Search:
    """Rounds of compiles: as written, presets and searched policies, then between the two sides.

    Attributes:
      bases: the step as written with each value of `--vary`, target by target.
      count: number of values of `--vary`, and so of bases of one target.
      notes: advice, filled while it runs.
    """

    compiles: Compiles
    changes: Changes
    bases: Sequence[Candidate]
    count: int
    notes: list[str] = field(default_factory=list)
    _kept_bytes: dict[Change, int] = field(default_factory=dict)
    _place_of: dict[Change, Place] = field(default_factory=dict)

    def run(self) -> None:
        policies = self.changes.remat or self.changes.offload
        bases = self.bases
        if not policies and not self.changes.options:
            self._run([bases])
            self._compare_with_no_limit()
            return
        with scratch_folder("choose-") as folder:
            graphs = self._graphs(bases, folder)
        if not policies:
            self._run([self._options(base) for base in bases])
            self._compare_with_no_limit()
            return
        places = {number: places_of(graph) for number, graph in graphs.items()}
        self._refuse_nothing_saved(graphs, places)
        places = {n: self._applicable(graphs[n], own) for n, own in places.items()}
        searched = [
            (base, places[number % self.count])
            for number, base in enumerate(bases)
            if number % self.count in places
        ]
        self._note_blocks(graphs)
        if self.changes.remat:  # without a solver: a first row within a minute
            mostly_blocks = [item for item in searched if item[1][0].kind == BLOCK]
            self._run(map(self._of_blocks, mostly_blocks))
        self._run([[*self._policies(*item), *self._options(item[0])] for item in searched])
        if self.changes.remat:
            self._run(map(self._of_blocks, searched))
            self._run([self._between(*item) for item in searched])
            self._advise(searched)
        self._compare_with_no_limit()

    def _run(self, lists: Iterable[Iterable[Candidate]]) -> None:
        """Compiles the first candidate of each list, then the second ones, and so on."""
        tried = {_identity(candidate) for candidate in self.compiles.ended}
        ordered = [c for c in chain.from_iterable(zip_longest(*lists)) if c is not None]
        new: dict[str, Candidate] = {}
        for candidate in ordered:
            if _identity(candidate) not in tried:
                new.setdefault(_identity(candidate), candidate)
        self.compiles.run(list(new.values()))

    def _graphs(self, bases: Sequence[Candidate], folder: Path) -> dict[int, ForwardGraph]:
        """Compiles the step as written; the forward pass of each point, by its number."""
        note = {number: str(folder / f"{number}.json") for number in range(self.count)}
        self.compiles.run(bases, recording=note)
        graphs = {
            n: forward_graph_at(Path(path)) for n, path in note.items() if Path(path).exists()
        }
        for number, graph in graphs.items():
            if graph.program_sha256 is not None:
                self.compiles.unchanged[repr(bases[number].values)] = graph.program_sha256
            if not self.changes.remat and not self.changes.offload:
                continue
            if any(site.kind == "checkpoint" for site in graph.sites):
                # What its own policies leave out is seen only if everything is kept.
                graphs[number] = self._with_everything(bases[number], graph, folder) or graph
        return graphs

    def _with_everything(
        self, base: Candidate, graph: ForwardGraph, folder: Path
    ) -> ForwardGraph | None:
        place, *_ = places_of(graph)
        change = next(change for change in presets(place) if change.text.startswith(KEEP_ALL))
        path = folder / "everything.json"
        path.unlink(missing_ok=True)
        self.compiles.run([replace(base, change=change)], recording={0: str(path)})
        return forward_graph_at(path) if path.exists() else None

    def _refuse_nothing_saved(
        self, graphs: Mapping[int, ForwardGraph], places: Mapping[int, Sequence[Place]]
    ) -> None:
        if not graphs or any(places.values()):
            return
        raise no_place_error(self.bases[0].reference.name, list(graphs.values()))

    def _applicable(self, graph: ForwardGraph, places: Sequence[Place]) -> tuple[Place, ...]:
        """The places where a policy is possible, with a note on the others.

        Raises:
          XlapipeError: it is possible in none of them.
        """
        kept, messages = applicable(self.bases[0].reference.name, graph, places)
        self.notes += messages
        return kept

    def _note_blocks(self, graphs: Mapping[int, ForwardGraph]) -> None:
        for graph in graphs.values():
            if graph.repeated:
                found = blocks_text(graph.repeated, lines=True)
                self.notes.append(f"Called repeatedly in the forward pass: {found}.")

    def _of_blocks(self, searched: tuple[Candidate, Sequence[Place]]) -> list[Candidate]:
        base, places = searched
        return [replace(base, change=change) for change in block_changes(places)]

    def _policies(self, base: Candidate, places: Sequence[Place]) -> Iterator[Candidate]:
        for place in (place for place in places if place.searched):
            if self.changes.remat:
                searched = self._searched(place, _SHARES, base.target)
                # Both kinds first: a budget may end the search early.
                for change in chain.from_iterable(zip_longest(presets(place), searched)):
                    if change is not None:
                        yield replace(base, change=change)
            if self.changes.remat and self.changes.offload:
                for change in self._searched(place, _SHARES, base.target, offload=True):
                    yield replace(base, change=change)
            if self.changes.offload:
                inputs = offloaded_inputs(place) if place.kind == BLOCK else None
                if inputs is not None:
                    yield replace(base, change=inputs)
                groups = [g for g in groups_of(place.values) if g.saved_bytes][:_MOST_OFFLOADED]
                for number in range(1, len(groups) + 1):
                    yield replace(base, change=offloaded(groups[:number], place))

    def _searched(
        self, place: Place, shares: Sequence[float], target: str, *, offload: bool = False
    ) -> Iterator[Change]:
        device = target_device(target)
        for kept in solutions(place.values, shares, device, offload=offload):
            change = chosen_values(kept, place)
            if not offload:
                self._kept_bytes[change] = kept.kept_bytes
                self._place_of[change] = place
            yield change

    def _between(self, base: Candidate, places: Sequence[Place]) -> Iterator[Candidate]:
        """Candidates between the largest searched plan that fits and the smallest that does not."""
        for place in (place for place in places if place.searched):
            whole = saved_bytes(place.values)
            rows = [
                (self._kept_bytes[row.candidate.change], row.memory.fits)
                for row in self.compiles.rows
                if row.candidate.values == base.values
                and row.candidate.target == base.target
                and row.candidate.change in self._kept_bytes
                and self._place_of[row.candidate.change] is place
            ]
            low = max((kept for kept, fits in rows if fits), default=None)
            high = min((kept for kept, fits in rows if not fits), default=whole)
            if low is None or low >= high:
                continue
            shares = [(low + part * (high - low)) / whole for part in _BETWEEN]
            for change in self._searched(place, shares, base.target):
                yield replace(base, change=change)

    def _advise(self, searched: Sequence[tuple[Candidate, Sequence[Place]]]) -> None:
        """States what frees more than any policy, for steps that no row makes fit."""
        for base, places in searched:
            own = [
                row
                for row in self.compiles.rows
                if row.candidate.target == base.target and row.candidate.values == base.values
            ]
            if any(row.memory.fits for row in own):
                continue
            where = ", ".join(place.where for place in places)
            self.notes.append(
                f"{base.target}, {base}: {len(own)} forms were tried, as written and with policies "
                f"for: {where}; none fits. Not tried: {_not_tried(places)}; `xlapipe advise` tries "
                "other changes."
            )

    def _compare_with_no_limit(self) -> None:
        """States what XLA's own rematerialisation costs the steps as written."""
        own = [
            row
            for row in self.compiles.rows
            if row.candidate.change is None and row.memory.rematerialised
        ]
        unlimited = without_limit()
        self._run([[replace(row.candidate, change=unlimited) for row in own]])
        for row in own:
            wanted = replace(row.candidate, change=unlimited)
            other = next((r for r in self.compiles.rows if r.candidate == wanted), None)
            if other is None or other.memory.refused:
                continue
            expected_bytes = int(EXPECTED_SHARE * row.memory.process_bytes)
            less_bytes = other.memory.total_bytes - expected_bytes
            note = (
                f"{row.candidate.target}, {row.candidate}: XLA itself computes "
                f"{row.memory.rematerialised} instructions again; at most {max(less_bytes, 0):,} B "
                "less at the peak would turn it off"
            )
            before, after = row.seconds_per_item, other.seconds_per_item
            if before is not None and after is not None:
                note += f": {after / before - 1:+z.1%} predicted time"
            self.notes.append(f"{note}.")

    def _options(self, base: Candidate) -> Iterator[Candidate]:
        if self.changes.options:
            for change in option_changes():
                yield replace(base, change=change)


def _not_tried(places: Sequence[Place]) -> str:
    blocks = next((place for place in places if place.kind == BLOCK), None)
    if blocks is not None:
        return (
            f"a jax.lax.scan over {blocks_text(blocks.functions)} with jax.checkpoint of its body, "
            "which keeps the same values as recomputing everything of them, in a plan that may be "
            "smaller; several blocks in one checkpoint; a smaller batch and more devices"
        )
    if all(place.kind != GRADIENT for place in places):
        return "smaller blocks, a smaller batch and more devices"
    return (
        "jax.checkpoint, nnx.remat or nn.remat of each layer or block, which are no functions "
        "that are called repeatedly here"
    )


def _identity(candidate: Candidate) -> str:
    """What a candidate compiles, apart from how its change is described."""
    change = candidate.change
    own = [change.arguments, change.options] if change is not None else None
    return repr((candidate.target, candidate.values, own))


def forward_graph_at(path: Path) -> ForwardGraph:
    """What a compiling child recorded."""
    return typed(ForwardGraph, read_json(path))


def target_device(target: str) -> Device:
    """The GPU whose speeds order what is recomputed on a target."""
    device = device_of_target(target) or device_of_target(_REFERENCE)
    assert device is not None
    return device
