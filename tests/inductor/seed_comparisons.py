"""Writes what `xlapipe diff` prints for each reference dump into seed_comparisons.txt.

    python -m tests.inductor.seed_comparisons

The reference dumps are in shared/seeds beside the checkout.
"""

import contextlib
import io
import re
from pathlib import Path

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main

ROOT = Path(__file__).resolve().parents[2]
SEEDS = Path("../shared/seeds")
PAGE = Path(__file__).with_suffix(".txt")
# Where packages were installed on the machines that printed the dumps.
_INSTALLED = re.compile(r"/usr\S*?/site-packages")
# Reference dump, what it is compared with, its dump under hlo_dumps/.
CASES = (
    ("000_43be01c397569ca8", "fsdp-mlp-reference", f"h200-1x2-cublas-jax{GOLDEN_JAXLIB}"),
    ("001_f2a980d458b1ffe8", "resnet50-backward", f"h200-cublas-jax{GOLDEN_JAXLIB}"),
    ("002_0926b2a0123efc8b", "spectral-diffusion", f"h200-cublas-jax{GOLDEN_JAXLIB}"),
    ("003_f6ca195099ee0f7f", "qwen3-step", f"h200-cublas-jax{GOLDEN_JAXLIB}"),
    ("004_11560de70615f418", "float8-linear-forward", f"h200-cublas-jax{GOLDEN_JAXLIB}"),
    ("004_11560de70615f418", "float8-linear-backward", f"h200-cublas-jax{GOLDEN_JAXLIB}"),
    ("004_11560de70615f418", "float8-linear-step", f"h200-cublas-jax{GOLDEN_JAXLIB}"),
)


def comparison(seed: str, workload: str, folder: str) -> str:
    """What the command prints, with paths from the root of the checkout."""
    printed = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
        code = main(["diff", str(SEEDS / f"{seed}.txt"), f"hlo_dumps/{workload}/{folder}"])
    assert code < 2, seed
    text = _INSTALLED.sub("<site-packages>", printed.getvalue().replace(f"{SEEDS}/", "seeds/"))
    return "\n".join(line.rstrip() for line in text.splitlines())


def page() -> str:
    """Every command, and what it prints."""
    parts = []
    for seed, workload, folder in CASES:
        command = f"xlapipe diff seeds/{seed}.txt hlo_dumps/{workload}/{folder}"
        parts.append(f"$ {command}\n{comparison(seed, workload, folder)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
