"""Opens what XLA wrote at a path, and refuses what torch Inductor wrote there."""

import os
from pathlib import Path

from xlapipe.dump.dump import is_dump, open_dump
from xlapipe.dump.readers import read_path
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import DumpError
from xlapipe.registry import refuse_module_file, refuse_workload


def is_inductor_dump(path: Path) -> bool:
    """Whether torch Inductor wrote what is at `path`."""
    if is_dump(path):
        return False
    from xlapipe.inductor.graph_files import is_inductor  # 12 modules that no dump of XLA needs

    return is_inductor(path)


def open_path(path: Path) -> XlaFiles:
    """Reads a dump directory of xlapipe, an `.hlo.pb`, or any buffer assignment that XLA wrote."""
    if is_dump(path):
        return open_dump(path)
    if is_inductor_dump(path):
        raise DumpError(
            f"{path}: expected a dump of XLA, found one of torch Inductor; fix: use `xlapipe "
            "show`, `report` or `check`, which read both; `diff` takes one of each"
        )
    if path.suffix == ".py":
        refuse_module_file(str(path))
    if not os.path.lexists(path):
        refuse_workload(str(path))
    return XlaFiles(read_path(path), path=path)
