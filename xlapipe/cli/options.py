"""Options that several commands share, and the registration of commands."""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from xlapipe.cli.examples import EXAMPLES
from xlapipe.cli.output import print_error, print_note
from xlapipe.compile.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.tuning import tuning_of
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.errors import XlapipeError
from xlapipe.report.units import parse_bytes

if TYPE_CHECKING:
    from xlapipe.compile.make_jobs import CompileSettings
    from xlapipe.search.rows import SearchSettings

SIZE_HELP = "bytes, or e.g. 16GB, 16GiB, 512MB"
GEMM_POLICIES = tuple(policy.value for policy in GemmPolicy)
GEMM_HELP = "which GEMM backends XLA may use"
_HELP_WIDTH = 79
Command = Callable[[argparse.Namespace], int]

WORKLOAD_HELP = (
    "a registered name (see `xlapipe list`) or module:attribute, imported from the current folder; "
    "with arguments: 'qwen3-decode(layers=28)'"
)
PATH_HELP = (
    "a dump directory, an .hlo.pb, or a *buffer-assignment*.txt of XLA; of torch Inductor an "
    "output_code.py, ir_*_fusion.txt, torch_compile_debug folder or TORCH_LOGS text; also gzipped"
)


# All choices, which are left out where one of them was probably meant.
_CHOICES = re.compile(r" \(choose from .*\)")


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the option or value that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, and exits with code 2."""
        wrong, known = _wrong_word(message, self)
        close = get_close_matches(wrong, known, n=1, cutoff=0.6) if wrong else []
        if close:
            message = f"{_CHOICES.sub('', message)}; did you mean {close[0]}?"
        elif re.search(r"unrecognized arguments: [^-]", message):
            message += "; fix: give paths and names together, before the options"
        self.print_usage(sys.stderr)
        print_error(message, program=self.prog)
        self.exit(2)


def _wrong_word(message: str, parser: argparse.ArgumentParser) -> tuple[str, list[str]]:
    """The word that argparse refused, and the words that it knows in that place."""
    commands = [
        command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for command in action.choices.values()
    ]
    options = [
        option
        for command in (parser, *commands)
        for action in command._actions
        for option in action.option_strings
    ]
    if match := re.search(r"unrecognized arguments: (--[^\s=]+)", message):
        return match[1], options
    if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        return match[1], re.findall(r"[\w.@-]+", match[2])
    return "", []


class Commands:
    """The commands of a parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(
        self, name: str, run: Command, text: str, *, json: bool = True
    ) -> argparse.ArgumentParser:
        """Adds a command and returns its parser, for the command's own arguments.

        Args:
          run: runs the command and returns the exit code.
          text: one sentence for the help.
          json: whether it has the option `--json`.
        """
        shown = "".join(
            f"  {command}\n" + (f"      {what}\n" if what else "")
            for command, what in EXAMPLES[name]
        )
        parser = self._parsers.add_parser(
            name,
            help=text,
            description=textwrap.fill(text, _HELP_WIDTH),
            epilog=f"examples:\n{shown}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if json:
            parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(command=run)
        return parser

    def group(self, name: str, text: str) -> "Commands":
        """Adds a group of commands: `target` of `xlapipe target capture`."""
        return Commands(self._parsers.add_parser(name, help=text, description=text))


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a compile: the target and GEMM policies."""
    add_target_options(parser)
    parser.add_argument(
        "--gemm",
        action="append",
        choices=GEMM_POLICIES,
        help=f"{GEMM_HELP}; repeatable; default: auto",
    )


def add_estimate_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that makes XLA write its time estimates."""
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="let XLA write its own time estimates of fusions into the dump, which does not change "
        "the plan; for `show --time`",
    )


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose a target."""
    parser.add_argument(
        "--target",
        type=target_names,
        help=f"a name of `xlapipe targets`, or `attached`; default: {DEFAULT_TARGET}",
    )
    parser.add_argument(
        "--target-config", type=Path, metavar="FILE", help="a GpuTargetConfigProto in text format"
    )
    parser.add_argument(
        "--tuning",
        type=tuning_of,
        metavar="auto|none|tune|FILE",
        help="which autotune results to compile with. auto, the default: those that the device's "
        "tuner would choose, where some are known of the target (`xlapipe lock known`). none: "
        "XLA's defaults; `untuned = true` below [tool.xlapipe] in pyproject.toml states it for a "
        "project. tune, with --target attached: measure them, and keep them in the dump. FILE: "
        "autotune_lock.json of a device; with --target-config also XLA's file of results",
    )
    parser.add_argument(
        "--topology",
        metavar="HOSTSxGPUS|CHIPS",
        help="hosts × GPUs per host, e.g. 8x8, or a grid of TPU chips, e.g. 4x4, 2x2x4 or, for two "
        "slices, 4x4-2slices; default: from the workload's mesh",
    )
    parser.add_argument(
        "--without-xla-patch",
        action="append",
        default=[],
        choices=[patch.value for patch in XlaPatch],
        help="a change that xlapipe makes to XLA in memory and that is not made; repeatable",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="compile again what was compiled before and is unchanged; XLAPIPE_NO_CACHE=1 in the "
        "environment does so in every command",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="S",
        help="seconds per compile; default: %(default)g",
    )


def add_network_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names the network between GPUs."""
    parser.add_argument(
        "--network",
        type=network_text,
        metavar="NAME",
        help="the network between GPUs, for predicted times: hgx-400g, efa, … or e.g. "
        "'{gpus_per_domain = 8, nic_bytes_per_second = 50e9}'; default: `network` below "
        "[tool.xlapipe] in pyproject.toml, else the usual one of the GPU",
    )


def network_text(text: str) -> str:
    """The type of an argument that names or describes a network.

    Raises:
      NetworkError: it does not.
    """
    from xlapipe.devices.targets.network import network_named

    network_named(text)
    return text


def add_scheduler_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that gives the compiles to a cluster."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compile on the workers of a Dask cluster, e.g. tcp://10.0.0.1:8786; needs the extra "
        "xlapipe[cluster]",
    )


def add_vary_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names sizes."""
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="an argument of the workload and its values; repeatable",
    )


def add_fitting_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of commands that compare many plans with a device's memory."""
    parser.add_argument(
        "--gemm",
        choices=GEMM_POLICIES,
        default="auto",
        help=f"{GEMM_HELP}; default: %(default)s",
    )
    add_network_option(parser)
    parser.add_argument(
        "--memory",
        metavar="SHARE|SIZE|usable[-SIZE]",
        help="what a plan may take of the device's memory: a share (0.9), within which XLA keeps "
        "plans; bytes (60GB); or `usable`, the default, which is "
        f"{DEFAULT_MEMORY_FRACTION:g} on GPUs, as in jax, and all that the compiler leaves on "
        "TPUs. Each also less what must stay free for other arrays and programs: usable-4GB",
    )
    add_scheduler_option(parser)
    parser.add_argument(
        "--jobs", type=at_least_one, metavar="N", help="parallel compiles; default: number of cores"
    )


def compile_settings(
    options: argparse.Namespace, policies: Sequence[str] | None
) -> "CompileSettings":
    """The values of the options of `add_target_options`, with these GEMM policies."""
    from xlapipe.compile.make_jobs import CompileSettings
    from xlapipe.devices.platforms.nvidia import ESTIMATE_OPTIONS

    return CompileSettings(
        target=options.target,
        target_config=options.target_config,
        policies=tuple(policies or ()),
        tuning=options.tuning,
        timeout_seconds=options.timeout,
        topology=options.topology,
        without_xla_patches=frozenset(map(XlaPatch, options.without_xla_patch)),
        use_cache=not options.no_cache,
        options=ESTIMATE_OPTIONS if getattr(options, "estimate", False) else {},
    )


def target_name(options: argparse.Namespace) -> str:
    """The target of the options of `add_target_options`, for people."""
    config: Path | None = options.target_config
    return config.stem if config is not None else options.target or DEFAULT_TARGET


def search_settings(options: argparse.Namespace, out: Path | None = None) -> "SearchSettings":
    """The values of the options of `add_target_options` and `add_fitting_options`."""
    from xlapipe.search.memory_budget import memory_budget
    from xlapipe.search.rows import SearchSettings

    if isinstance(options.tuning, Path):
        raise XlapipeError(
            f"--tuning {options.tuning}: a lock is valid for one size and form of a step only; "
            "fix: leave it out"
        )
    return SearchSettings(
        compile=compile_settings(options, [options.gemm]),
        memory=memory_budget(options.memory),
        at_once=options.jobs or os.cpu_count() or 1,
        scheduler=options.scheduler,
        out=out,
    )


def target_names(text: str) -> str:
    """The type of an argument that is a target, or several with commas, as people write them.

    Prints which one is meant if the catalogue has several of that name.
    """
    from xlapipe.compile.make_jobs import ATTACHED
    from xlapipe.devices.targets.catalogue import resolved_name

    names = []
    for name in filter(None, map(str.strip, text.split(","))):
        target = resolved_name(name) if name != ATTACHED else None
        names.append(name if target is None else target.name or name)
        if target is not None and target.others:
            print_note(f"target {name} is {target.name}; others: {', '.join(target.others)}")
    return ",".join(names)


def size_of(option: str, *, least: int = 0) -> Callable[[str], int]:
    """The type of an option that is a number of bytes, e.g. 16GB, 16GiB or 17179869184.

    Args:
      option: its name, for errors.
      least: the smallest number that is accepted.
    """

    def size_bytes(text: str) -> int:
        try:
            number = parse_bytes(text)
        except ValueError as error:
            raise XlapipeError(f"{option} {text}: {error}") from None
        if number < least:
            raise XlapipeError(
                f"{option} {text}: expected {least} or more bytes; fix: write e.g. {option} 16GB"
            )
        return number

    return size_bytes


def at_least_one(text: str) -> int:
    """The type of an argument that is a positive integer."""
    return _at_least(1, text)


def multiple(text: str) -> float:
    """The type of an argument that is a factor between 0.01 and 100."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected a number from 0.01 to 100, found {text!r}")
    return value


def at_least_two(text: str) -> int:
    """The type of an argument that is an integer of 2 or more."""
    return _at_least(2, text)


def _at_least(least: int, text: str) -> int:
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected an integer of {least} or more, found {text!r}")
    return int(text)
