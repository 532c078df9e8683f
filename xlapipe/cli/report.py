"""Write a report on dumps: one HTML file.

xlapipe report DIR --out report.html
    one offline page
xlapipe report BEFORE AFTER
    two plans and their difference
"""

import argparse
from pathlib import Path

from xlapipe.cli.options import NETWORK, PATH_HELP, Options
from xlapipe.cli.output import print_json, print_text

_DEFAULT_PAGE = Path("report.html")

OPTIONS: Options = {
    "paths PATH": {"nargs": "+", "help": PATH_HELP},
    "--out FILE": f"default: {_DEFAULT_PAGE}",
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.files.writing import write_files
    from xlapipe.report.subjects import open_report

    report = open_report(options.paths)
    data = report.data if options.json else {}
    out = options.out or (None if options.json else _DEFAULT_PAGE)
    if out is not None:
        # A name in a dump may contain a lone surrogate, which UTF-8 cannot encode.
        page = report.page().encode(errors="replace")
        write_files({out: page})
    if options.json:
        print_json({**data, "written": [] if out is None else [str(out)]})
    else:
        print_text(f"{out}: {len(page):,} B")
    return 0
