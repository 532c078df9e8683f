"""`show` and `report`: what a dump says, and nothing is compiled."""

import argparse
from pathlib import Path

from xlapipe.cli.options import PATH_HELP, Commands, print_json


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    show = commands.add("show", _show, "Show the plan of a dump.")
    show.add_argument("path", type=Path, metavar="PATH", help=PATH_HELP)

    text = "Write a report on dumps: one HTML file, or text."
    report = commands.add("report", _report, text)
    report.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATH_HELP)
    report.add_argument("--out", type=Path, metavar="FILE", help="default: report.html")
    report.add_argument("--text", action="store_true", help="print Markdown, or write it to --out")
    report.add_argument(
        "--xprof", type=Path, metavar="DIR", help="write a log folder for XProf's memory viewer"
    )


def _show(options: argparse.Namespace) -> int:
    from xlapipe.dumps.opened import open_path
    from xlapipe.plan.donation import donations
    from xlapipe.report.figures import opened_figures

    opened = open_path(options.path)
    figures = opened_figures(opened)
    if options.json:
        print_json(figures)
    else:
        from xlapipe.report.terminal import print_plan

        print_plan(str(options.path), figures, opened.plan, donations(opened.program))
    return 0


def _report(options: argparse.Namespace) -> int:
    from xlapipe.dumps.atomic_write import write_files
    from xlapipe.report.comparison import compare
    from xlapipe.report.data import report_data
    from xlapipe.report.subject import read_subject

    subjects = [read_subject(path) for path in options.paths]
    difference = compare(*subjects) if len(subjects) == 2 else None
    files: dict[Path, bytes] = {}
    if options.xprof is not None:
        from xlapipe.report.xprof import xprof_files

        files |= {options.xprof / path: data for path, data in xprof_files(subjects).items()}
    if options.text:
        from xlapipe.report.markdown import render_text

        text = render_text(subjects, difference)
        if options.out is not None:
            files[options.out] = text.encode()
        elif not options.json:
            print(text, end="")
    elif options.out is not None or not (options.json or options.xprof):
        from xlapipe.report.page import render_page

        page = render_page(subjects, difference)
        # A name in a dump may hold half a surrogate pair, which no UTF-8 text can.
        files[options.out or Path("report.html")] = page.encode(errors="replace")
    write_files(files)
    if options.json:
        written = [str(path) for path in files]
        print_json({**report_data(subjects, difference), "written": written})
    else:
        for path, content in files.items():
            print(f"{path}: {len(content):,} B")
    return 0
