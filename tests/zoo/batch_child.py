"""Compiles many jobs in one process: `python batch_child.py FOLDER`. Never imported.

jax is imported once, which takes longer than most of the compiles. Each program is lowered and
compiled by the code of the compiling child. CPU seconds are written beside each result.
"""

import json
import sys
import time
from pathlib import Path

from xlapipe.compile.child import main


def compile_all(folder: Path) -> None:
    for job in sorted(folder.glob("*/job.json")):
        started = time.process_time()
        main(job)
        measured = {"cpu_seconds": time.process_time() - started}
        (job.parent / "measured.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))
