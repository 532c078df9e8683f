"""Check what is installed for compiling.

xlapipe doctor
    what is missing for compiling, and the command that installs it
xlapipe doctor --json
    the same for programs
"""

import argparse

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text

OPTIONS: Options = {}


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from xlapipe.compile.doctor import examine

    checks = examine()
    if options.json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            failed = "MISSING" if check.missing else "WRONG"
            mark = {True: "ok", False: failed, None: "-"}[check.ok]
            prefix = "found " if mark == "WRONG" else ""
            print_text(f"{mark:<8} {check.name}: {prefix}{check.found}")
            if check.ok is False:
                fix = f"; fix: {check.remedy}" if check.remedy is not None else ""
                print_text(f"         expected {check.expected}{fix}")
            elif check.remedy is not None:
                print_text(f"         optional: {check.expected}; to install: {check.remedy}")
    return 2 if any(check.ok is False for check in checks) else 0
