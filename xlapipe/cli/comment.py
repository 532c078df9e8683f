"""Print the changes between two folders of dumps as Markdown, for a pull request.

xlapipe comment before/hlo_dumps after/hlo_dumps
    Markdown for a pull request
xlapipe comment before after --link https://example.org/report.html
"""

import argparse

from xlapipe.cli.options import NETWORK, Options
from xlapipe.cli.output import print_json, print_markdown
from xlapipe.errors import XlapipeError

OPTIONS: Options = {
    "before BEFORE": "a folder of dumps",
    "after AFTER": "the same folder, changed",
    "--link URL": "address of the full report",
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.report.changed_dumps import changed_dumps, changed_markdown

    for folder in (options.before, options.after):
        if not folder.is_dir():
            raise XlapipeError(
                f"{folder}: expected a folder of dumps, found "
                f"{'a file' if folder.exists() else 'none'}; fix: give the folder above the dumps, "
                "or an empty one if there was none before"
            )
    changed = changed_dumps(options.before, options.after)
    if options.json:
        print_json(changed)
    else:
        for line in changed_markdown(changed, link=options.link):
            print_markdown(line)
    return 0
