"""`python -m models.compressed_resnet.train`: trains a ResNet on compressed activations.

Exit codes: 0 success, 2 bad input.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from models.command import run_command
from models.compressed_resnet.cli.options import add_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m models.compressed_resnet.train",
        description="Train a ResNet whose backward pass reads activations of 2, 4 or 8 bits.",
        epilog="A run that is interrupted and resumed computes the same bits as one that is not.",
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: _run(options), program="train", json_output=options.json)


def _run(options: argparse.Namespace) -> int:
    from models.compressed_resnet.cli.run import train_command

    result = train_command(options)
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
