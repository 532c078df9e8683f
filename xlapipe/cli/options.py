"""What several commands share: their registration, options of a compile, JSON."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlapipe.compiling.make_jobs import Asked

Command = Callable[[argparse.Namespace], int]

WORKLOAD_HELP = (
    "a registered name (`xlapipe list`), or module:attribute from the current folder; arguments "
    "may follow: 'qwen3-decode(layers=28)'"
)
PATH_HELP = (
    "a dump directory, an .hlo.pb, or any *buffer-assignment*.txt of XLA's; of torch Inductor's "
    "output_code.py, ir_*_fusion.txt, a torch_compile_debug folder or a TORCH_LOGS text (gzip too)"
)


class Commands:
    """The commands of a parser, each of which takes `--json`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, run: Command, text: str) -> argparse.ArgumentParser:
        """A command, for its own arguments to be added; `run` returns the exit code."""
        added = self._parsers.add_parser(name, help=text, description=text)
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(command=run)
        return added

    def group(self, name: str, text: str) -> "Commands":
        """Commands behind a word of their own: `xlapipe target capture`."""
        return Commands(self._parsers.add_parser(name, help=text, description=text))


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Options of a compile: the target, and GEMM policies."""
    add_target_options(parser)
    parser.add_argument(
        "--gemm",
        action="append",
        choices=("auto", "cublas", "triton"),
        help="which backends matrix products may go to; may be repeated; default: auto",
    )


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Options that name a target."""
    parser.add_argument(
        "--target", default=None, help="a name of `xlapipe targets`, or `attached`; default: h200"
    )
    parser.add_argument("--target-config", type=Path, help="a GpuTargetConfigProto as text")
    parser.add_argument(
        "--autotune-lock",
        type=Path,
        metavar="FILE",
        help="a device's autotune results; XLA's own file of them takes --target-config too",
    )
    parser.add_argument(
        "--topology",
        metavar="HOSTSxGPUS",
        help="the machines that a mesh is laid over, e.g. 8x8; default: as many as it asks for",
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="per compile")


def asked_for(options: argparse.Namespace, policies: Sequence[str] | None) -> "Asked":
    """What the options of `add_target_options` ask for, under these GEMM policies."""
    from xlapipe.compiling.make_jobs import Asked
    from xlapipe.targets.topology import Topology

    topology = options.topology
    return Asked(
        target=options.target,
        target_config=options.target_config,
        policies=tuple(policies or ()),
        autotune_lock=options.autotune_lock,
        timeout_seconds=options.timeout,
        topology=Topology.parse(topology) if topology is not None else None,
        tune=getattr(options, "tune", False),
    )


def at_least_one(text: str) -> int:
    """An argument that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number


def print_json(data: Any) -> None:
    """Prints one line of JSON."""
    # Without indentation: json is six times faster so, and `| jq` makes it pretty.
    print(json.dumps(data, ensure_ascii=False))
