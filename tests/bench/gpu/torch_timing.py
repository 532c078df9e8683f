"""Timing of the sides that use torch, which must be installed on the GPU machine."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from timing import ROTATED_BYTES, print_timings, timed

Case = tuple[str, str, Callable[..., Any], Sequence[tuple[torch.Tensor, ...]]]


def rotating(
    make: Callable[[torch.Generator], tuple[torch.Tensor, ...]], set_bytes: int
) -> list[tuple[torch.Tensor, ...]]:
    """Sets of random inputs on the device, in total larger than its caches."""
    generator = torch.Generator("cuda").manual_seed(0)
    return [make(generator) for _ in range(-(-ROTATED_BYTES // set_bytes))]


def captured(call: Callable[[], object], rewind: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `call`; `rewind` is called before each run of `call`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            rewind()
            call()
    torch.cuda.synchronize()
    rewind()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph


def torch_timings(cases: Iterable[Case]) -> None:
    """Times each (case, variant, function, sets of inputs)."""
    timings = [
        timed(
            case,
            variant,
            lambda number, sets=sets, function=function: function(*sets[number % len(sets)]),
            lambda _: torch.cuda.synchronize(),
        )
        for case, variant, function, sets in cases
    ]
    name = torch.cuda.get_device_name()
    print_timings(framework=f"torch {torch.__version__}", device=name, timings=timings)
