"""Times Qwen3's steps, of this repository and of plain torch; writes the record.

    PYTHONPATH=. python tests/gpu/record_qwen3_steps.py OUT.json [SECONDS [COMPILE [MODEL…]]]

Without models: all cases of 0.6B. A model is `SIZE` for the decoding of one sequence, or
`SIZE:KIND,KIND` for kinds of `qwen3_cases.py`, e.g. `4b:batch,prompt`. All sides compile at the
same time, one process for each variant of torch's, whose tuning takes minutes; then they are timed
one after another. Sides that have not compiled after COMPILE seconds (135 by default) are stopped,
and all after SECONDS (270); the record has what was timed, and the errors. The sides of XLA alone
are last, because they compile in their turns; see `qwen3_jax.py`. They decode one sequence.
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


# torch's fastest variant of each kind at 0.6B.
FASTEST = {"single": "flex-1", "batch": "flex-32", "prompt": "CUDNN"}


def sides_of(models: Sequence[str]) -> tuple[str, ...]:
    """This repository's defaults of all models, then torch's sides, then XLA alone."""
    ours, torch, xla = [], [], []
    for model in models:
        size, _, kinds = model.partition(":")
        kinds = kinds or "single"
        variables = f"QWEN3_SIZE={size} QWEN3_CASES={kinds}"
        ours.append(f"{variables} qwen3_jax default")
        torch += [f"{variables} qwen3_torch_tuned {FASTEST[kind]}" for kind in kinds.split(",")]
        if "single" in kinds:
            xla.append(f"QWEN3_SIZE={size} QWEN3_CASES=single qwen3_jax xla")
    return (*ours, *torch, *xla)


def main(out: str, limit_seconds: str = "270", compile_seconds: str = "135", *models: str) -> None:
    """Writes what the sides printed, and the errors of those that failed."""
    sides = sides_of(models) if models else SIDES
    os.environ.update(VARIABLES | ({SAMPLES_VARIABLE: "5"} if models else {}))
    write_record(
        Path(out), sides, run_together(sides, float(limit_seconds), float(compile_seconds))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
