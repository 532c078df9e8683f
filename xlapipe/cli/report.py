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

OPTIONS: Options = {
    "paths PATH": {"nargs": "+", "help": PATH_HELP},
    "--out FILE": {"default": Path("report.html"), "help": "default: report.html"},
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.files.writing import write_files
    from xlapipe.report.subjects import report_page

    # A name in a dump may contain a lone surrogate, which UTF-8 cannot encode.
    page = report_page(options.paths).encode(errors="replace")
    write_files({options.out: page})
    if options.json:
        print_json({"written": [str(options.out)]})
    else:
        print_text(f"{options.out}: {len(page):,} B")
    return 0
