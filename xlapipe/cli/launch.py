"""Run a command in one process per GPU of this host. With several hosts, run the same command on
each of them, with its own --host-index.

  xlapipe launch --processes 4 -- python train.py
      one process per GPU
  xlapipe launch --processes 2 -- xlapipe run built
"""

import argparse

from xlapipe.cli.options import Options
from xlapipe.run.rendezvous import DEFAULT_WAIT_SECONDS

OPTIONS: Options = {
    "--processes N": {
        "required": True,
        "help": "number of processes to start here, one per GPU",
    },
    "--hosts N": {"default": 1, "help": "default: 1"},
    "--host-index I": {"type": int, "default": 0, "help": "index of this host; default: 0"},
    "--coordinator HOST:PORT": "address of host 0 with a free port; default, for one host: this "
    "host, any free port",
    "--wait S": {
        "default": DEFAULT_WAIT_SECONDS,
        "help": "seconds that processes wait for each other; default: %(default)g",
    },
    "program -- COMMAND": {"nargs": "+", "help": "the command that each process runs"},
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.report.records import row_of
    from xlapipe.run.launch import LaunchSettings, launch

    command = tuple(options.program)
    return launch(row_of(LaunchSettings, options, command=command, wait_seconds=options.wait))
