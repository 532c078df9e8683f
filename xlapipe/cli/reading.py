"""`show` and `report`: what a dump says, and nothing is compiled."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.options import PATH_HELP, Commands, print_json
from xlapipe.errors import DumpError

if TYPE_CHECKING:
    from xlapipe.dumps.opened import Opened
    from xlapipe.inductor import InductorDump


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
    from xlapipe.dumps.opened import Opened, open_any
    from xlapipe.plan.donation import donations
    from xlapipe.report.figures import opened_figures

    opened = open_any(options.path)
    if not isinstance(opened, Opened):
        _show_inductor(opened, options)
        return 0
    figures = opened_figures(opened)
    if options.json:
        print_json(figures)
    else:
        from xlapipe.report.terminal import print_plan

        print_plan(str(options.path), figures, opened.plan, donations(opened.program))
    return 0


def _show_inductor(dump: "InductorDump", options: argparse.Namespace) -> None:
    if options.json:
        from xlapipe.report.inductor_figures import inductor_figures

        print_json(inductor_figures(dump))
    else:
        from xlapipe.report.inductor_terminal import print_inductor

        print_inductor(dump)


def _report(options: argparse.Namespace) -> int:
    from xlapipe.dumps.opened import Opened, open_any

    opened = [open_any(path) for path in options.paths]
    of_xla = [each for each in opened if isinstance(each, Opened)]
    of_inductor = [each for each in opened if not isinstance(each, Opened)]
    if of_xla and of_inductor:
        raise DumpError(
            f"{of_inductor[0].path}: expected dumps of one compiler, found torch Inductor's beside "
            "XLA's; fix: give the dumps of each compiler in a separate `xlapipe report`"
        )
    if of_inductor:
        return _report_inductor(of_inductor, options)
    return _report_xla(of_xla, options)


def _report_inductor(dumps: "Sequence[InductorDump]", options: argparse.Namespace) -> int:
    from xlapipe.report.inductor_figures import inductor_figures

    if options.xprof is not None:
        raise DumpError(
            f"{dumps[0].path}: expected a dump of XLA for --xprof, found one of torch Inductor; "
            "fix: leave --xprof out"
        )
    text = page = None
    if options.text:
        from xlapipe.report.inductor_markdown import render_inductor_text

        text = render_inductor_text(dumps)
    elif options.out is not None or not options.json:
        from xlapipe.report.inductor_page import render_inductor_page

        page = render_inductor_page(dumps)
    return _write(options, {"subjects": [inductor_figures(dump) for dump in dumps]}, {}, text, page)


def _report_xla(opened: "Sequence[Opened]", options: argparse.Namespace) -> int:
    from xlapipe.report.comparison import compare
    from xlapipe.report.data import report_data
    from xlapipe.report.subject import Subject

    subjects = [Subject(str(path), each) for path, each in zip(options.paths, opened, strict=True)]
    difference = compare(*subjects) if len(subjects) == 2 else None
    files: dict[Path, bytes] = {}
    text = page = None
    if options.xprof is not None:
        from xlapipe.report.xprof import xprof_files

        files |= {options.xprof / path: data for path, data in xprof_files(subjects).items()}
    if options.text:
        from xlapipe.report.markdown import render_text

        text = render_text(subjects, difference)
    elif options.out is not None or not (options.json or options.xprof):
        from xlapipe.report.page import render_page

        page = render_page(subjects, difference)
    return _write(options, report_data(subjects, difference), files, text, page)


def _write(
    options: argparse.Namespace,
    data: dict[str, Any],
    files: dict[Path, bytes],
    text: str | None,
    page: str | None,
) -> int:
    """Writes `files`, and the report as text or as a page."""
    from xlapipe.dumps.atomic_write import write_files

    if text is not None and options.out is not None:
        files[options.out] = text.encode()
    elif text is not None and not options.json:
        print(text, end="")
    if page is not None:
        # A name in a dump may hold half a surrogate pair, which no UTF-8 text can.
        files[options.out or Path("report.html")] = page.encode(errors="replace")
    write_files(files)
    if options.json:
        print_json({**data, "written": [str(path) for path in files]})
    else:
        for path, content in files.items():
            print(f"{path}: {len(content):,} B")
    return 0
