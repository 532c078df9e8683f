"""`xlapipe report`: a report on dumps as HTML or Markdown; nothing is compiled."""

import argparse
from pathlib import Path

from xlapipe.cli.options import PATH_HELP, Commands, add_network_option
from xlapipe.cli.output import print_json, print_text
from xlapipe.files.visible_text import visible_lines

_DEFAULT_PAGE = Path("report.html")


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
    add_network_option(report)


def _report(options: argparse.Namespace) -> int:
    from xlapipe.files.writing import write_files
    from xlapipe.report.subjects import open_group

    group = open_group(options.paths)
    data = group.data() if options.json else {}
    files: dict[Path, bytes] = {}
    if options.xprof is not None:
        files = {options.xprof / path: text for path, text in group.xprof_files().items()}
    if options.text:
        text = visible_lines(group.markdown())
        if options.out is not None:
            files[options.out] = text.encode()
        elif not options.json:
            print(text, end="")
    elif options.out is not None or not (options.json or options.xprof):
        # A name in a dump may contain a lone surrogate, which UTF-8 cannot encode.
        files[options.out or _DEFAULT_PAGE] = group.page().encode(errors="replace")
    write_files(files)
    if options.json:
        print_json({**data, "written": [str(path) for path in files]})
    else:
        for path, content in files.items():
            print_text(f"{path}: {len(content):,} B")
    return 0
