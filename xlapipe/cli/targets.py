"""`xlapipe targets`: the GPUs of the catalogue."""

import argparse

from xlapipe.cli.options import Commands
from xlapipe.cli.output import print_json
from xlapipe.report.text_table import aligned_rows


def add(commands: Commands) -> None:
    """Adds the command."""
    commands.add("targets", _targets, "List the GPUs to compile for.")


def _targets(options: argparse.Namespace) -> int:
    from xlapipe.targets.catalogue import catalogue

    gpus = catalogue()
    if options.json:
        print_json(
            [
                {
                    "name": gpu.name,
                    "description": gpu.description,
                    "compute_capability": gpu.compute_capability,
                    "device_memory_bytes": gpu.device_memory_size,
                    "supported": gpu.unsupported is None,
                    "unsupported": gpu.unsupported,
                }
                for gpu in gpus
            ]
        )
        return 0
    rows = [
        (
            gpu.name,
            str(gpu.compute_capability),
            f"{gpu.device_memory_size:,} B",
            gpu.description,
            f"not supported: {gpu.unsupported}" if gpu.unsupported else "",
        )
        for gpu in gpus
    ]
    for line in aligned_rows(rows, right={1, 2}):
        print(line)
    return 0
