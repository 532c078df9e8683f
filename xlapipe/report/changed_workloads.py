"""What changed in the plans of workloads between two commits."""

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from xlapipe.differences.comparing.base_checkout import BaseCheckout
from xlapipe.differences.comparing.two_commits import TwoCommits, folder_name
from xlapipe.dump.dump import is_dump, open_dump
from xlapipe.errors import XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.plans.wording import counted, listed
from xlapipe.report.change_limits import Limits, broken_limits
from xlapipe.report.changed_dumps import changed_dumps
from xlapipe.report.html_page import render_page
from xlapipe.report.xla_subject import XlaSubject


def changed_workloads(base: BaseCheckout, both: TwoCommits, limits: Limits) -> dict[str, Any]:
    """The JSON of `xlapipe diff --base`: workloads whose plans differ, and what is to be known."""
    has_dumps = any(both.after.iterdir()) or any(both.before.iterdir())
    changed = changed_dumps(both.before, both.after) if has_dumps else []
    for dump in changed:
        dump["name"] = unquote(dump["name"])
    named = {dump["name"] for dump in changed}
    notes = [
        *base.notes,
        *(
            f"{base.name} does not compile {listed(names, 3)}, so that nothing is compared: {text}"
            for text, names in both.failed_before.items()
        ),
    ]
    same = both.count - len(named) - len(both.failed)
    title = f"{len(named)} of {counted(both.count, 'workload')} changed since {base.name}"
    return {
        "base": base.commit,
        "title": f"{title}, {same} did not.",
        "workloads": both.count,
        "notes": notes,
        "failed": [{"workload": name, "message": text} for name, text in both.failed.items()],
        "broken": broken_limits(limits, changed),
        "changed": changed,
    }


def keep_changed(both: TwoCommits, compared: dict[str, Any], out: Path) -> None:
    """Copies the dumps that differ below `out`, with a report on each, and the JSON."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise XlapipeError(f"{out}: expected an empty folder, or none; fix: choose another --out")
    pages = {out / "changes.json": json.dumps(compared, indent=1).encode()}
    for name in (folder_name(dump["name"]) for dump in compared["changed"]):
        kept = [side / name for side in (both.before, both.after) if is_dump(side / name)]
        subjects = [XlaSubject(open_dump(path), given_name=path.parent.name) for path in kept]
        pages[out / f"{name}.html"] = render_page(subjects).encode(errors="replace")
        for path in kept:
            shutil.copytree(path, out / path.parent.name / name)
    write_files(pages)
