"""Small dumps written by hand in the grammars that torch's versions print, with known bytes.

Their texts are in `data/written`.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent / "data/written"


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")


# y = (x * 2) @ w; z = relu(y) in place. x, w: [4, 8] and [8, 16], float32.
# buf0 [4, 8] 128 B; buf1 [4, 16] 256 B, and buf2 in its place. Peak 384 B; output 256 B.
IR_2_6 = _read("ir_2_6")

# Two nodes in one kernel: both store x * 2, and op0 is used only there, so that it is never stored.
# op3 copies what no kernel wrote. The outputs are buf1, buf2 (128 B each) and buf4 (64 B).
IR_FUSED = _read("ir_fused")

# What begins a wrapper, and the code of its kernel.
HEAD = _read("head")
RELU = _read("relu")

# relu(x @ w): buf0 [4, 16] float32, 256 B, and buf1 in its place; x and buf1 are saved.
FORWARD = _read("forward")

# dw = xᵀ @ (g * mask) [8, 16], 512 B; buf0 takes the place of the saved relu.
BACKWARD = _read("backward")

FX_FORWARD = _read("fx_forward")

# Memory planning: one pool of 512 B holds both buffers; a partition frees its argument inside.
POOL_AND_PARTITION = _read("pool_and_partition")

# Sizes are symbols, whose example is 8; a fallback of two results; an all-gather over two devices.
DYNAMIC = _read("dynamic")

# The program of hlo_dumps/spectral-diffusion: two matrix products, exp and mul between them.
SPECTRAL = _read("spectral")


def without_layouts(text: str) -> str:
    """Without layouts, with a StarDep of one argument, a MemoryDep of three."""
    lines = [line for line in text.splitlines() if "layout = " not in line]
    return "\n".join(lines).replace("}, None)", "})").replace(", mode=None)", ")")


def as_log(*codes: str) -> str:
    """A log of Python's logging, as `TORCH_LOGS=output_code,aot_graphs` with `basicConfig`."""
    parts = ["/site/torch/pgo.py:455: UserWarning: no cache\n  warn_once("]
    parts.append(
        "INFO:torch._functorch.__aot_graphs:TRACED GRAPH\n ===== Forward graph 0 =====\n "
        "<eval_with_key>.1 " + FX_FORWARD
    )
    for code in codes:
        parts.append("DEBUG:torch._inductor.codecache.__output_code:Output code:\n" + code)
        parts.append("INFO:torch._inductor.codecache.__output_code:Output code written to: /t/a.py")
    parts.append("Sync time ms: 0.0\n\n experiment  1_float8\nAll  0.838")
    return "\n".join(parts) + "\n"


def as_torch_log(*codes: str) -> str:
    """A log in which torch puts its prefix before every line."""
    prefix = "V0716 15:02:31.123000 4711 torch/_inductor/graph.py:2104] [0/0] [__output_code] "
    lines = ["W0716 15:02:30.000000 4711 torch/_logging.py:1] nothing to see"]
    for code in codes:
        lines += [prefix + "Output code: ", *(prefix + line for line in code.splitlines()), prefix]
        lines.append(prefix + "Output code written to: /tmp/a.py")
    return "\n".join(lines) + "\n"
