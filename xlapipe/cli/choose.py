"""Compile forms of a step, and print the fastest one that fits, and what each saves.

xlapipe choose step:workload
    what the backward pass keeps, and remedies: donation, policies, …
xlapipe choose step:workload --vary batch=8,16 --remat --target h100,h200
    which batch and which policy of jax.checkpoint to write
"""

import argparse
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xlapipe.cli.compile_options import FITTING, search_settings
from xlapipe.cli.options import VARY, WORKLOAD, Options, hidden
from xlapipe.cli.output import print_error, print_json, print_lines, table_width
from xlapipe.compile.defaults import default_target
from xlapipe.errors import EndedBySignalError, XlapipeError
from xlapipe.plans.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xlapipe.search.candidate import Candidate
    from xlapipe.search.choosing.choose import Choice
    from xlapipe.search.rows import Row

_RARE = ("--target-config FILE", "--no-cache", "--scheduler ADDRESS")
OPTIONS: Options = {
    **WORKLOAD,
    **VARY,
    "--remat": "search policies of jax.checkpoint: which saved values to keep, by name, or by "
    "primitive and shape",
    "--offload": "try to keep saved values in the host's memory",
    "--maximise NAME": "an argument that is the number of items of a step, e.g. batch: rows are "
    "ranked by predicted time per item",
    "--budget MINUTES": "start no compile after so many minutes",
    "--price NAME=PRICE,…": "what one device costs per hour, e.g. h100=2.9,b200=5.5: rows then "
    "have the cost of a million steps, or items of --maximise",
    **FITTING,
    **hidden({"--compiles N": ""}),
    **hidden({usage: FITTING[usage] for usage in _RARE}),
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.cli.choose_table import choice_figures, choice_lines

    choice = _choice(options)
    if options.json:
        print_json(choice_figures(choice))
    else:
        print_lines(choice_lines(choice, width=table_width()))
    for row in choice.failed:
        if not choice.remedies:  # else they are in a table
            print_error(f"{row.candidate}: {row.outcome}")
    for message in _nothing_fits(choice):
        print_error(message)
    if choice.interrupt is not None:
        raise choice.interrupt
    if any(isinstance(row.outcome, EndedBySignalError) for row in choice.failed):
        return 2  # one of them may be faster
    return 0 if choice.chosen else 1


def _nothing_fits(choice: "Choice") -> "Iterator[str]":
    """A message for each target that no row fits, with what is missing."""
    from xlapipe.search.rows import by_target

    for target, rows in by_target(choice.rows).items():
        if any(row.fits for row in rows):
            continue
        least = min(rows, key=lambda row: row.memory.total_bytes)
        memory = least.memory
        more = "" if choice.remedies else "leave --remat out for other changes, or "
        if not any(row.candidate.change for row in rows):
            more = "add --remat, or "
        yield (
            f"{choice.workload}: of {counted(len(rows), 'form')} tried nothing fits {target}: the "
            f"smallest plan ({least.candidate}) needs {memory.total_bytes:,} B, "
            f"{-memory.headroom_bytes:,} B more than {memory.usable_bytes:,} B; fix: {more}give "
            "smaller values with --vary, a larger target, or more bytes with --memory"
        )


def _choice(options: argparse.Namespace) -> "Choice":
    from xlapipe.search.choosing.choose import choose
    from xlapipe.search.sweep import Axis

    axes = [Axis.parse(text) for text in options.vary]
    if len({axis.name for axis in axes}) < len(axes):
        raise XlapipeError("--vary: a name is given twice; fix: list all its values once")
    targets = [name.strip() for name in (options.target or "").split(",") if name.strip()]
    if options.target_config is not None and targets:
        raise XlapipeError("--target and --target-config are both given; fix: leave one out")
    if options.target_config is not None:
        targets = [options.target_config.stem]
    options.target = None
    search = search_settings(options)
    prices = _prices(options.price, targets or [default_target()])
    remedies = not (axes or options.remat or options.offload)
    with shown_search() as shown:
        return choose(
            options.workload,
            {axis.name: axis.values for axis in axes},
            remat=options.remat,
            offload=options.offload,
            remedies=remedies,
            targets=targets,
            maximise=options.maximise,
            search=search,
            budget_minutes=options.budget,
            compiles=options.compiles,
            prices=prices,
            **shown,
        )


@contextmanager
def shown_search() -> "Iterator[dict[str, Any]]":
    """What shows the progress of `choose`, on stderr: a bar on a terminal, otherwise lines."""
    from rich.console import Console
    from rich.text import Text

    from xlapipe.cli.progress import Bar

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    started: list[Candidate] = []

    def on_done(row: "Row") -> None:
        text = "failed"
        if not isinstance(row.outcome, XlapipeError):
            predicted = row.outcome.predicted
            time = f"{predicted.verb} {predicted.text}" if predicted is not None else "no time"
            text = f"{row.outcome.total_bytes:,} B, {time}"
        if not console.is_terminal:
            console.print(Text(f"xlapipe: {row.candidate.target}, {row.candidate}: {text}"))

    def on_progress(done: int, total: int, running: "Sequence[Candidate]") -> None:
        bar.show(done, total, running)
        if not console.is_terminal and running and running[-1] not in started:
            started.append(running[-1])
            console.print(Text(f"xlapipe: compiling {running[-1]}; {total - done} left"))

    with Bar("compiling", 1, console=console, silent=False) as bar:
        yield {"on_done": on_done, "on_progress": on_progress}


def _prices(text: str | None, targets: "Sequence[str]") -> dict[str, float]:
    from xlapipe.devices.targets.catalogue import resolved_name

    prices: dict[str, float] = {}
    for part in filter(None, map(str.strip, (text or "").split(","))):
        name, equals, number = part.partition("=")
        try:
            price = float(number) if equals else math.nan
        except ValueError:
            price = math.nan
        if not 0 < price < math.inf:
            raise XlapipeError(
                f"--price {part}: expected NAME=PRICE with a price above 0; fix: write e.g. "
                f"--price {targets[0]}=2.9"
            )
        target = name if name in targets else resolved_name(name).name or name
        if target not in targets:
            raise XlapipeError(
                f"--price {part}: expected one of the targets {', '.join(targets)}, found "
                f"{target}; fix: add it to --target, or leave its price out"
            )
        if target in prices:
            raise XlapipeError(f"--price {part}: {target} has two prices; fix: leave one out")
        prices[target] = price
    return prices
