"""Write a report on dumps: one HTML file, or Markdown.

xlapipe report DIR --out report.html
    one offline page
xlapipe report BEFORE AFTER
    two plans and their difference
"""

import argparse
from pathlib import Path

from xlapipe.cli.options import NETWORK, PATH_HELP, Options
from xlapipe.cli.output import print_json, print_text
from xlapipe.files.visible_text import visible_lines

_DEFAULT_PAGE = Path("report.html")

OPTIONS: Options = {
    "paths PATH": {"nargs": "+", "help": PATH_HELP},
    "--out FILE": f"default: {_DEFAULT_PAGE}",
    "--text": "Markdown instead of HTML; printed, or written to --out",
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.files.writing import write_files
    from xlapipe.report.subjects import open_report

    report = open_report(options.paths)
    data = report.data if options.json else {}
    files: dict[Path, bytes] = {}
    if options.text:
        text = visible_lines(report.markdown())
        if options.out is not None:
            files[options.out] = text.encode()
        elif not options.json:
            print(text, end="")
    elif options.out is not None or not options.json:
        # A name in a dump may contain a lone surrogate, which UTF-8 cannot encode.
        files[options.out or _DEFAULT_PAGE] = report.page().encode(errors="replace")
    write_files(files)
    if options.json:
        print_json({**data, "written": [str(path) for path in files]})
    else:
        for path, content in files.items():
            print_text(f"{path}: {len(content):,} B")
    return 0
