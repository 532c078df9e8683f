"""`xlapipe report`: a report on dumps as HTML or Markdown; nothing is compiled."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.options import PATH_HELP, Commands
from xlapipe.cli.output import print_json, print_text
from xlapipe.errors import DumpError
from xlapipe.files.visible_text import visible_lines

if TYPE_CHECKING:
    from xlapipe.dumps.opened import Opened
    from xlapipe.inductor.reader import InductorDump

_DEFAULT_PAGE = Path("report.html")


@dataclass(frozen=True)
class RenderedReport:
    """A report in the forms that the options ask for.

    Attributes:
      data: its JSON; empty without --json.
      markdown: None without --text.
      page: HTML; None if not requested.
      files: further files to write, by path.
    """

    data: dict[str, Any]
    markdown: str | None = None
    page: str | None = None
    files: dict[Path, bytes] = field(default_factory=dict)


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "Write a report on dumps: one HTML file, or Markdown."
    report = commands.add("report", _report, text)
    report.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATH_HELP)
    report.add_argument("--out", type=Path, metavar="FILE", help=f"default: {_DEFAULT_PAGE}")
    report.add_argument(
        "--text", action="store_true", help="Markdown instead of HTML; printed, or written to --out"
    )
    report.add_argument(
        "--xprof", type=Path, metavar="DIR", help="write a log folder for XProf's memory viewer"
    )


def _report(options: argparse.Namespace) -> int:
    from xlapipe.dumps.opened import Opened, open_any

    opened = [open_any(path) for path in options.paths]
    of_xla = [dump for dump in opened if isinstance(dump, Opened)]
    of_inductor = [dump for dump in opened if not isinstance(dump, Opened)]
    if of_xla and of_inductor:
        if len(opened) != 2:
            raise DumpError(
                f"{of_inductor[0].path}: expected dumps of one compiler, or one of torch Inductor "
                f"and one of XLA, found {len(of_inductor)} and {len(of_xla)}; fix: give one of each"
            )
        _write(_render_compilers(of_inductor[0], of_xla[0], options), options)
    elif of_inductor:
        _write(_render_inductor(of_inductor, options), options)
    else:
        _write(_render_xla(of_xla, options), options)
    return 0


def _render_compilers(
    inductor: "InductorDump", xla: "Opened", options: argparse.Namespace
) -> RenderedReport:
    from xlapipe.diff.compilers import compare_compilers
    from xlapipe.report.compilers_report import (
        comparison_figures,
        comparison_markdown,
        comparison_page,
    )

    comparison = compare_compilers(inductor, xla)
    data = {"comparison": comparison_figures(comparison)} if options.json else {}
    if options.text:
        return RenderedReport(data, markdown=comparison_markdown(comparison))
    if options.out is None and options.json:
        return RenderedReport(data)
    return RenderedReport(data, page=comparison_page(comparison))


def _render_inductor(
    dumps: "Sequence[InductorDump]", options: argparse.Namespace
) -> RenderedReport:
    from xlapipe.report.inductor_figures import inductor_figures

    if options.xprof is not None:
        raise DumpError(
            f"{dumps[0].path}: expected a dump of XLA for --xprof, found one of torch Inductor; "
            "fix: leave --xprof out"
        )
    data = {"subjects": [inductor_figures(dump) for dump in dumps]} if options.json else {}
    if options.text:
        from xlapipe.report.inductor_markdown import render_inductor_text

        return RenderedReport(data, markdown=render_inductor_text(dumps))
    if options.out is None and options.json:
        return RenderedReport(data)
    from xlapipe.report.inductor_page import render_inductor_page

    return RenderedReport(data, page=render_inductor_page(dumps))


def _render_xla(opened: "Sequence[Opened]", options: argparse.Namespace) -> RenderedReport:
    from xlapipe.report.json_data import report_data
    from xlapipe.report.reported_dump import ReportedDump
    from xlapipe.report.sections.two_dumps import compare_dumps

    dumps = [
        ReportedDump(str(path), dump) for path, dump in zip(options.paths, opened, strict=True)
    ]
    comparison = compare_dumps(*dumps) if len(dumps) == 2 else None
    data = report_data(dumps, comparison) if options.json else {}
    files: dict[Path, bytes] = {}
    if options.xprof is not None:
        from xlapipe.report.xprof import xprof_files

        files = {options.xprof / path: content for path, content in xprof_files(dumps).items()}
    if options.text:
        from xlapipe.report.markdown import render_markdown

        return RenderedReport(data, markdown=render_markdown(dumps, comparison), files=files)
    if options.out is None and (options.json or options.xprof):
        return RenderedReport(data, files=files)
    from xlapipe.report.html_page import render_page

    return RenderedReport(data, page=render_page(dumps, comparison), files=files)


def _write(report: RenderedReport, options: argparse.Namespace) -> None:
    """Writes the files of a report, and prints what is not written."""
    from xlapipe.files.writing import write_files

    files = dict(report.files)
    if report.page is not None:
        # A name in a dump may contain a lone surrogate, which UTF-8 cannot encode.
        files[options.out or _DEFAULT_PAGE] = report.page.encode(errors="replace")
    if report.markdown is not None and options.out is not None:
        files[options.out] = visible_lines(report.markdown).encode()
    elif report.markdown is not None and not options.json:
        print(visible_lines(report.markdown), end="")
    write_files(files)
    if options.json:
        print_json({**report.data, "written": [str(path) for path in files]})
    else:
        for path, content in files.items():
            print_text(f"{path}: {len(content):,} B")
