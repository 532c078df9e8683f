"""Times Qwen3's steps, of this repository and of plain torch; writes the record.

    PYTHONPATH=. python tests/gpu/record_qwen3_steps.py OUT.json [SECONDS [COMPILE_SECONDS [SIZE…]]]

Without sizes: all cases of 0.6B. With sizes: the decoding of one sequence of each. All sides
compile at the same time, one process for each variant of torch's, whose tuning takes minutes; then
they are timed one after another. Sides that have not compiled after COMPILE_SECONDS (135 by
default) are stopped, and all after SECONDS (270); the record has what was timed, and the errors.
The sides of XLA alone are last, because they compile in their turns; see `qwen3_jax.py`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "gpu"))

from compare import run_together
from timing import SAMPLES_VARIABLE
from write_record import write_record

# Variants of `qwen3_torch_tuned.py`.
TORCH = ("flex-1", "grouped-1", "flex-32", "grouped-32", "CUDNN", "FLASH")
SIDES = (
    "qwen3_jax default",
    *(f"qwen3_torch_tuned {variant}" for variant in TORCH),
    "qwen3_jax xla",
)
# Each process would otherwise allocate three quarters of the GPU's memory, or start as many
# compilers as the machine has cores. Fewer samples than by default, to end in time.
VARIABLES = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    SAMPLES_VARIABLE: "9",
}


def sides_of(sizes: Sequence[str]) -> tuple[str, ...]:
    """Of one sequence of other sizes; flex is torch's fastest attention there too."""
    sides = ("qwen3_jax default", "qwen3_torch_tuned flex-1", "qwen3_jax xla")
    return tuple(f"QWEN3_SIZE={size} {side}" for side in sides for size in sizes)


def main(out: str, limit_seconds: str = "270", compile_seconds: str = "135", *sizes: str) -> None:
    """Writes what the sides printed, and the errors of those that failed."""
    sides = sides_of(sizes) if sizes else SIDES
    os.environ.update(VARIABLES | ({SAMPLES_VARIABLE: "5"} if sizes else {}))
    write_record(
        Path(out), sides, run_together(sides, float(limit_seconds), float(compile_seconds))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
