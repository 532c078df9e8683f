"""Writes the dumps in this folder: torch's wrapper code for the CPU, and the bytes it asked for.

    python tests/inductor/data/make_cpu_dumps.py NAME ...

It needs torch and a C++ compiler; the folder was made with torch 2.13.0. torch's profiler reports
each allocation and each free on the CPU.
"""

import gzip
import importlib.util
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch._higher_order_ops.while_loop import while_loop
from torch.profiler import ProfilerActivity, profile

DATA = Path(__file__).parent
MARK_BYTES = 12_345
# Arguments that the caller keeps, as of a training step.
KEPT = re.compile(r"(primals|tangents|arg)_?\d+(_1)?")


class Embedding(torch.nn.Module):
    """Predicts each token from itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.out(self.table(ids)).view(-1, 100), ids.view(-1))


def loop(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Five passes of a loop."""
    start = torch.tensor(0)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x @ x.T @ x * 0.01), (start, x))


def dropout(x: torch.Tensor) -> torch.Tensor:
    """A product and dropout."""
    return F.dropout(x @ x.T, 0.3, True)


def aliases(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views, a concatenation, and an argument that is changed in place."""
    y.mul_(2)
    both = torch.cat([x, y], 0)
    return x.t(), both[:16], both * 2, y, x.sum()


PROGRAMS = {
    "aliases": (aliases, lambda: (torch.randn(32, 64), torch.randn(32, 64))),
    "dropout": (dropout, lambda: (torch.randn(32, 64, requires_grad=True),)),
    "embedding": (Embedding(), lambda: (torch.randint(0, 100, (4, 16)),)),
    "loop": (loop, lambda: (torch.randn(32, 64),)),
}


def main(names: list[str]) -> None:
    """Compiles, measures and writes each program."""
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True
    torch._inductor.config.trace.enabled = True
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            torch._inductor.config.trace.debug_dir = scratch
            torch._dynamo.reset()
            write(name, Path(scratch))


def write(name: str, scratch: Path) -> None:
    """Compiles a program into `scratch`, and keeps its wrapper code with its measurement."""
    program, make_arguments = PROGRAMS[name]
    result = torch.compile(program)(*make_arguments())
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.backward(torch.ones_like(result))
    folder = DATA / f"torch-2.13-cpu-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    measured = {}
    for code in scratch.rglob("output_code.py"):
        kind = re.search("forward|backward|inference", code.parent.name)[0]
        text = re.sub(r"/\S+/(?=\w+/\w+\.(?:py|cpp|h)\b)", "<cache>/", code.read_text())
        target = folder / f"{kind}0" / "output_code.py.gz"
        target.parent.mkdir(parents=True)
        target.write_bytes(gzip.compress(text.encode(), mtime=0))
        # As the reader expects it: an inference graph is a forward pass.
        measured["backward" if kind == "backward" else "forward"] = measure(code)
    (folder / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")


def measure(path: Path) -> dict[str, int]:
    """Bytes that one call asked for beyond what was there before."""
    spec = importlib.util.spec_from_file_location("measured", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.call(module.get_args())
    body = path.read_text().partition("def call(")[2]
    names = re.search(r"\n\s+([\w, ]+?),? = args\n", body)[1].split(", ")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        arguments = module.get_args()
        kept = [
            argument
            for name, argument in zip(names, arguments, strict=True)
            if KEPT.fullmatch(name) or "backward" not in path.parent.name
        ]
        torch.empty(MARK_BYTES, dtype=torch.uint8)
        results = module.call(arguments)
    sizes = allocations(profiler)
    held = peak = 0
    for size in sizes[sizes.index(-MARK_BYTES) + 1 :]:
        held += size
        peak = max(peak, held)
    del kept, results
    return {"requested_before": 0, "requested_peak": peak, "requested_after": held}


def allocations(profiler: profile) -> list[int]:
    """Bytes of each allocation, below 0 for each free, in order."""
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    found = []
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    return [size for _, size in sorted(found, key=lambda pair: pair[0])]


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(PROGRAMS))
