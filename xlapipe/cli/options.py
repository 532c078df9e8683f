"""What the options of commands are made of, and those that several commands share."""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from xlapipe.cli.output import print_error, print_note

# By name and metavar, as in `--out DIR`: the help, or all keywords of `add_argument`. An option
# without metavar is a flag, and `_TYPES` has the type of a metavar.
Options = Mapping[str, str | Mapping[str, Any]]

WORKLOAD_HELP = (
    "a registered name (see `xlapipe list`) or module:attribute, imported from the current folder; "
    "with arguments: 'qwen3-decode(layers=28)'"
)
PATH_HELP = (
    "a dump directory, an .hlo.pb, or a *buffer-assignment*.txt of XLA; of torch Inductor an "
    "output_code.py, ir_*_fusion.txt, torch_compile_debug folder or TORCH_LOGS text; also gzipped"
)
_HELP_WIDTH = 79


class Parser(argparse.ArgumentParser):
    """A parser whose errors are printed as those of commands."""

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, and exits with code 2."""
        if re.search(r"unrecognized arguments: [^-]", message):
            message += "; fix: give paths and names together, before the options"
        self.print_usage(sys.stderr)
        print_error(message, program=self.prog)
        self.exit(2)


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    for usage, stated in options.items():
        name, _, metavar = usage.partition(" ")
        keywords: dict[str, Any] = {"help": stated} if isinstance(stated, str) else {**stated}
        if metavar:
            keywords = {"metavar": metavar, "type": _TYPES.get(metavar), **keywords}
        elif name.startswith("--") and "choices" not in keywords:
            keywords["action"] = "store_true"
        parser.add_argument(name, **keywords)


def hidden(options: Options) -> Options:
    """Options that `--help` does not list: docs/cli.md does."""
    stated = {usage: {} if isinstance(text, str) else dict(text) for usage, text in options.items()}
    return {usage: {**keywords, "help": argparse.SUPPRESS} for usage, keywords in stated.items()}


def add_command(commands: "argparse._SubParsersAction[Parser]", name: str, module: Any) -> None:
    """Adds a command: the first paragraph of its module is its help, the rest are examples."""
    text, _, examples = (module.__doc__ or "").partition("\n\n")  # none under -OO
    text = " ".join(text.split())
    examples = textwrap.indent(textwrap.dedent(examples), "  ")
    parser = commands.add_parser(
        name,
        help=text,
        description=textwrap.fill(text, _HELP_WIDTH),
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, {"--json": "print JSON"})
    add_options(parser, module.OPTIONS)
    parser.set_defaults(command=module.run)


def network_text(text: str) -> str:
    """The type of an argument that names or describes a network."""
    from xlapipe.devices.targets.network import network_named

    network_named(text)
    return text


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


def multiple(text: str) -> float:
    """The type of an argument that is a factor between 0.01 and 100."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected a number from 0.01 to 100, found {text!r}")
    return value


def at_least(least: int, text: str) -> int:
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected an integer of {least} or more, found {text!r}")
    return int(text)


_TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("PATH", "DIR", "FILE", "FOLDER", "RECORD", "BEFORE", "AFTER"), Path),
    **dict.fromkeys(("FACTOR", "RATIO"), multiple),
    **dict.fromkeys(("MINUTES", "S"), float),
    "N": partial(at_least, 1),
}
WORKLOAD: Options = {"workload WORKLOAD": WORKLOAD_HELP}
NETWORK: Options = {
    "--network NAME": {
        "type": network_text,
        "help": "the network between GPUs, for predicted times: hgx-400g, efa, … or e.g. "
        "'{gpus_per_domain = 8, nic_bytes_per_second = 50e9}'; default: `network` below "
        "[tool.xlapipe] in pyproject.toml, else the usual one of the GPU",
    }
}
SCHEDULER: Options = {
    "--scheduler ADDRESS": "compile on the workers of a Dask cluster, e.g. tcp://10.0.0.1:8786; "
    "needs the extra xlapipe[cluster]"
}
JOBS: Options = {"--jobs N": "parallel compiles; default: number of cores"}
VARY: Options = {
    "--vary NAME=VALUE,…": {
        "action": "append",
        "default": [],
        "help": "an argument of the workload and its values; repeatable",
    }
}
