"""`xlapipe comment`: what changed between two folders of dumps, for a pull request."""

import argparse
from pathlib import Path

from xlapipe.cli.options import Commands, add_network_option
from xlapipe.cli.output import print_json, print_markdown
from xlapipe.errors import XlapipeError


def add(commands: Commands) -> None:
    """Adds the command."""
    text = "Print the changes between two folders of dumps as Markdown, for a pull request."
    comment = commands.add("comment", _comment, text)
    comment.add_argument("before", type=Path, metavar="BEFORE", help="a folder of dumps")
    comment.add_argument("after", type=Path, metavar="AFTER", help="the same folder, changed")
    comment.add_argument("--link", metavar="URL", help="address of the full report")
    add_network_option(comment)


def _comment(options: argparse.Namespace) -> int:
    from xlapipe.report.changed_dumps import changed_dumps, changed_figures, changed_markdown

    for folder in (options.before, options.after):
        if not folder.is_dir():
            raise XlapipeError(
                f"{folder}: expected a folder of dumps, found "
                f"{'a file' if folder.exists() else 'none'}; fix: give the folder above the dumps, "
                "or an empty one if there was none before"
            )
    changed = changed_dumps(options.before, options.after)
    if options.json:
        print_json(changed_figures(changed))
    else:
        for line in changed_markdown(changed, link=options.link):
            print_markdown(line)
    return 0
