"""Compiles many requests in one process: `python batch_child.py FOLDER`. Never imported.

jax is imported once, which takes longer than most of the compiles. Each program is lowered and
compiled by the code of the compiling child. The names of the primitives that jax lowered and the
CPU seconds are written beside each result.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir

from xlapipe.compile.child import main


def record_primitives() -> set[str]:
    """The set that the names of all primitives lowered from now on are added to."""
    names: set[str] = set()
    lower_jaxpr = mlir.jaxpr_subcomp

    def recording(ctx: Any, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        names.update(equation.primitive.name for equation in jaxpr.eqns)
        return lower_jaxpr(ctx, jaxpr, *args, **kwargs)

    mlir.jaxpr_subcomp = recording
    return names


def rules_for_cuda() -> list[str]:
    """Names of the primitives that jax has a lowering rule for on CUDA.

    Call it at the end: modules such as `jax.experimental.sparse` add rules when they are imported.
    """
    rules = [*mlir._lowerings, *mlir._platform_specific_lowerings["cuda"]]
    return sorted({primitive.name for primitive in rules})


def compile_all(folder: Path) -> None:
    names = record_primitives()
    for request in sorted(folder.glob("*/request.json")):
        names.clear()
        started = time.process_time()
        main(request)
        seconds = time.process_time() - started
        measured = {"primitives": sorted(names), "cpu_seconds": seconds}
        (request.parent / "measured.json").write_text(json.dumps(measured))
    (folder / "rules.json").write_text(json.dumps(rules_for_cuda()))


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))
