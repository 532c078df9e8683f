"""Copy locks of devices to this user's folder, from which others are predicted.

xlapipe lock add hlo_dumps/*/*/autotune_lock.json
    the locks of your goldens
xlapipe dump step
    a plan that uses them
"""

import argparse

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text

OPTIONS: Options = {"files FILE": {"nargs": "+", "help": "autotune_lock.json"}}


def run(options: argparse.Namespace) -> int:
    from xlapipe.compile.known_locks import add_lock

    copies = [(file, add_lock(file)) for file in options.files]
    if options.json:
        print_json({"locks": [str(copy) for _, copy in copies]})
        return 0
    for file, copy in copies:
        print_text(f"{file}: added as {copy}")
    return 0
