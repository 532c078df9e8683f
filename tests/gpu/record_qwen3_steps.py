"""Times Qwen3's steps, of this repository at three sizes and of plain torch; writes the record.

    PYTHONPATH=. python tests/gpu/record_qwen3_steps.py OUT.json [SECONDS [COMPILE_SECONDS]]

All sides compile at the same time, one process for each variant of torch's, whose tuning takes
minutes; then they are timed one after another. Sides that have not compiled after COMPILE_SECONDS
(135 by default) are stopped, and all after SECONDS (270); the record has what was timed, and the
errors. The sides of XLA alone are last, because they compile in their turns; see `qwen3_jax.py`.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "gpu"))

from compare import run_together
from timing import SAMPLES_VARIABLE
from write_record import write_record

# Variants of `qwen3_torch_tuned.py`.
TORCH = ("flex-1", "grouped-1", "flex-32", "grouped-32", "CUDNN", "FLASH")
# The command chooses the kernels for 1.7B, and XLA alone for 4B; both are timed for both sizes.
SIDES = (
    "qwen3_jax default",
    *(f"qwen3_torch_tuned {variant}" for variant in TORCH),
    *(f"QWEN3_SIZE={size} qwen3_jax triton" for size in ("1.7b", "4b")),
    *(f"QWEN3_SIZE={size} qwen3_jax xla" for size in ("1.7b", "4b", "0.6b")),
)
# Each process would otherwise allocate three quarters of the GPU's memory, or start as many
# compilers as the machine has cores. Fewer samples than by default, to end in time.
VARIABLES = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    SAMPLES_VARIABLE: "9",
}


def main(out: str, limit_seconds: str = "270", compile_seconds: str = "135") -> None:
    """Writes what the sides printed, and the errors of those that failed."""
    os.environ.update(VARIABLES)
    sides = run_together(SIDES, float(limit_seconds), float(compile_seconds))
    write_record(Path(out), SIDES, sides)


if __name__ == "__main__":
    main(*sys.argv[1:])
