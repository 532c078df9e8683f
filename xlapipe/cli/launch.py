"""`xlapipe launch`: runs a command in one process per GPU."""

import argparse

from xlapipe.cli.options import Commands, at_least_one
from xlapipe.run.rendezvous import DEFAULT_WAIT_SECONDS

_HELP = (
    "Run a command in one process per GPU of this host. With several hosts, run the same command "
    "on each of them, with its own --host-index."
)


def add(commands: Commands) -> None:
    """Adds the command."""
    launch = commands.add("launch", _launch, _HELP, json=False)
    launch.add_argument(
        "--processes",
        type=at_least_one,
        required=True,
        metavar="N",
        help="number of processes to start here, one per GPU",
    )
    launch.add_argument("--hosts", type=at_least_one, default=1, metavar="N", help="default: 1")
    launch.add_argument(
        "--host-index", type=int, default=0, metavar="I", help="index of this host; default: 0"
    )
    launch.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of host 0 with a free port; default, for one host: this host, any free port",
    )
    launch.add_argument(
        "--wait",
        type=float,
        default=DEFAULT_WAIT_SECONDS,
        metavar="S",
        help="seconds that processes wait for each other; default: %(default)g",
    )
    launch.add_argument(
        "program", nargs="+", metavar="-- COMMAND", help="the command that each process runs"
    )


def _launch(options: argparse.Namespace) -> int:
    from xlapipe.run.launch import LaunchSettings, launch

    return launch(
        LaunchSettings(
            command=tuple(options.program),
            processes=options.processes,
            hosts=options.hosts,
            host_index=options.host_index,
            coordinator=options.coordinator,
            wait_seconds=options.wait,
        )
    )
