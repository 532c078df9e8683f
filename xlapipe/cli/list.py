"""List the registered workloads.

xlapipe list
    names of workloads in the current folder's project
xlapipe list --json
    the same for programs
"""

import argparse

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text
from xlapipe.report.pages import aligned_rows

OPTIONS: Options = {}


def run(options: argparse.Namespace) -> int:
    from xlapipe.registry import registered_workloads

    workloads = registered_workloads()
    if options.json:
        print_json([{"name": workload.name, "target": workload.target} for workload in workloads])
        return 0
    for line in aligned_rows([(workload.name, workload.target) for workload in workloads]):
        print_text(line)
    if not workloads:
        print_text(
            "no workload is registered; add them to [tool.xlapipe.workloads] in your project's "
            "pyproject.toml, or name one as module:attribute"
        )
    return 0
