"""Texts of a small TPU plan, written by hand from the grammar: no file of libtpu is kept here.

The step writes a row into a cache that is donated, and multiplies the cache with a weight, which is
moved to VMEM first. The cache is moved to VMEM, too, and back into its own allocation.
"""

from pathlib import Path

CACHE = "bf16[64,1024]{1,0:T(8,128)(2,1)}"
CACHE_IN_VMEM = "bf16[64,1024]{1,0:T(8,128)(2,1)S(1)}"
TEXTS = Path(__file__).with_name("texts")
HLO = (TEXTS / "tpu_hlo.txt").read_text(encoding="utf-8")
ASSIGNMENT = (TEXTS / "tpu_assignment.txt").read_text(encoding="utf-8")

TOTAL = 32 + 278528 + 131072 + 4096 + 32768 + 512 + 409600 + 4
VALUES = f"""Total bytes used: {TOTAL} (836.5KiB)
"""

LIVE_RANGE = (TEXTS / "tpu_live_range.txt").read_text(encoding="utf-8")

_STEM = "module_0000.jit_step.cl_1.after_optimizations"


def write_dump(folder: Path, **replacements: str) -> Path:
    """Writes the files as libtpu names them.

    Args:
      replacements: other texts by file: `hlo`, `assignment`, `values` or `live_range`.
    """
    texts = {
        "hlo": (".txt", HLO),
        "assignment": ("-buffer-assignment.txt", ASSIGNMENT),
        "values": ("-buffer-assignment-values.txt", VALUES),
        "live_range": ("-live-range.txt", LIVE_RANGE),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (suffix, text) in texts.items():
        (folder / f"{_STEM}{suffix}").write_text(replacements.get(name, text), encoding="utf-8")
    # Files of other stages, which are not read.
    for stage in ("before_buffer_assignment", "after_buffer_assignment"):
        (folder / f"{_STEM}_{stage}.txt").write_text(HLO, encoding="utf-8")
    return folder
