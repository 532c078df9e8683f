"""Writes what `xlapipe diff` prints for each reference dump into docs/lab/seeds.md.

    python -m tests.inductor.seed_comparisons

The reference dumps are in shared/seeds beside the checkout.
"""

import contextlib
import io
import re
from pathlib import Path

from xlapipe.cli import main

ROOT = Path(__file__).resolve().parents[2]
SEEDS = Path("../shared/seeds")
PAGE = ROOT / "docs" / "lab" / "seeds.md"
BEGIN = "<!-- comparisons: written by tests/inductor/seed_comparisons.py -->\n"
END = "<!-- end of comparisons -->\n"
# Where packages were installed on the machines that printed the dumps.
_INSTALLED = re.compile(r"/usr\S*?/site-packages")
# Reference dump, what it is compared with, its dump under hlo_dumps/.
CASES = (
    ("000_43be01c397569ca8", "fsdp-mlp-reference", "h200-1x2-cublas-jax0.11.2"),
    ("001_f2a980d458b1ffe8", "resnet50-backward", "h200-cublas-jax0.11.2"),
    ("002_0926b2a0123efc8b", "spectral-diffusion", "h200-cublas-jax0.11.2"),
    ("003_f6ca195099ee0f7f", "qwen3-step", "h200-cublas-jax0.11.2"),
    ("004_11560de70615f418", "float8-linear-forward", "h200-cublas-jax0.11.2"),
    ("004_11560de70615f418", "float8-linear-backward", "h200-cublas-jax0.11.2"),
    ("004_11560de70615f418", "float8-linear-step", "h200-cublas-jax0.11.2"),
)


def comparison(seed: str, workload: str, folder: str) -> str:
    """What the command prints, with paths from the root of the checkout."""
    printed = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
        main(["diff", str(SEEDS / f"{seed}.txt"), f"hlo_dumps/{workload}/{folder}"])
    text = _INSTALLED.sub("<site-packages>", printed.getvalue().replace(f"{SEEDS}/", "seeds/"))
    return "\n".join(line.rstrip() for line in text.splitlines())


def section() -> str:
    """The part of the page between the markers."""
    parts = []
    for seed, workload, folder in CASES:
        command = f"xlapipe diff seeds/{seed}.txt hlo_dumps/{workload}/{folder}"
        parts += [
            f"### Dump {seed[:3]} beside {workload}\n",
            f"```console\n$ {command}\n{comparison(seed, workload, folder)}\n```\n",
        ]
    return "\n".join(parts)


def write() -> None:
    """Replaces the comparisons in the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{section()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
