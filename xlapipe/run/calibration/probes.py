"""The programs of a calibration: probes, each of some kernels of one family, by FAMILY/NUMBER.

Those of the family `launches` are the same each time, since constants follow from them. The others
are drawn by a seed, so that each name is one program. A probe of arrays runs several kernels, one
after another, as a step does.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlapipe.run.calibration import array_probes as arrays
from xlapipe.run.calibration import library_probes as libraries
from xlapipe.run.calibration import pallas_probes as pallas
from xlapipe.run.calibration import step_probes as steps
from xlapipe.run.calibration.timed_program import BF16, F32, Arg, Drawn, Rng, TimedProgram

_AXIS = "gpus"
# The number of probes of each family, kernels drawn for each, and what draws them, in turns.
_FAMILIES: dict[str, tuple[int, int, tuple[Callable[[Rng], Drawn], ...]]] = {
    "elements": (14, 6, (arrays.elements,)),
    "sums": (24, 6, (arrays.sums,)),
    "norms": (10, 5, (arrays.norms,)),
    "turned": (12, 6, (arrays.turned,)),
    "joined": (14, 6, (arrays.joined,)),
    "windows": (8, 5, (arrays.windows,)),
    "gathers": (12, 5, (arrays.gathers,)),
    "placed": (5, 5, (arrays.placed,)),
    "scatters": (14, 5, (arrays.scatters,)),
    "sorts": (12, 4, (arrays.sorts,)),
    "copies": (4, 5, (arrays.copies,)),
    "products": (26, 5, (libraries.products,)),
    "quantised": (4, 4, (libraries.quantised,)),
    "convolutions": (24, 3, (libraries.convolutions,)),
    "attention": (3, 2, (libraries.attention,)),
    "pallas_products": (6, 3, (pallas.pallas_products,)),
    "pallas_attention": (3, 2, (pallas.pallas_attention,)),
    "pallas_rows": (4, 4, (pallas.pallas_rows,)),
    "pallas_elements": (4, 4, (pallas.pallas_elements,)),
    "chains": (30, 1, (steps.chains,)),
    "updates": (3, 1, (steps.updates,)),
}
_NO_GRAPH: dict[str, Any] = {"xla_gpu_enable_command_buffer": ""}


def probes() -> dict[str, TimedProgram]:
    """Every probe for one GPU, by name. Those for which there may be no time are at the end."""
    drawn = [
        (number / count, f"{family}/{number:02}", [draws[n % len(draws)] for n in those])
        for family, (count, together, draws) in _FAMILIES.items()
        for number in range(count)
        for those in (range(number * together, (number + 1) * together),)
    ]
    return _launches() | {
        name: _packed(name, draws) for _, name, draws in sorted(drawn, key=lambda probe: probe[0])
    }


def probes_for_attached() -> dict[str, TimedProgram]:
    """The probes for the attached GPUs; those of collectives if there are several."""
    return probes() | collective_programs(jax.devices())


def _packed(name: str, draws: Sequence[Callable[[Rng], Drawn]]) -> TimedProgram:
    """Several draws in one program, each of which starts when the one before has its results."""
    rng = np.random.default_rng(list(name.encode()))
    drawn = [draw(rng) for draw in draws]
    fns: Sequence[Callable[..., Any]] = [fn for fn, *_ in drawn]

    def fn(*parts: Any) -> Any:
        results: list[Any] = []
        for one, args in zip(fns, parts, strict=True):
            ready, results[-1:] = lax.optimization_barrier((args, results[-1:]))
            results.append(one(*ready))
        return results

    # Outside of command buffers the profiler names the instruction of each kernel.
    options = _NO_GRAPH if name.endswith(tuple("02468")) else {}
    return TimedProgram(fn, tuple(tuple(args) for _, *args in drawn), options=options)


def _chain(length: int, x: Any) -> Any:
    """Kernels that XLA cannot fuse."""
    for _ in range(length):
        x = lax.optimization_barrier(x + 1.0)
    return x


def _repeated(times: int, x: Any) -> Any:
    y = x
    for _ in range(times):
        y = y * 1.5 + x
    return y


def _until(trips: float, kernels: int, x: Any) -> Any:
    """A loop that waits for its condition on the host."""
    return lax.while_loop(
        lambda state: state[1] < trips,
        lambda state: (_chain(kernels, state[0]), state[0][0] * 0 + state[1] + 1),
        (x, jnp.float32(0)),
    )


def _loop(trips: int, kernels: int, x: Any) -> Any:
    return lax.fori_loop(0, trips, lambda _, y: _chain(kernels, y), x)


def _launches() -> dict[str, TimedProgram]:
    """Launches, loops, bandwidths and rates: `fit.py` takes constants from them by name."""
    small, large = Arg((1 << 10,)), Arg((1 << 24,))
    programs: dict[str, TimedProgram] = {}

    def add(name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
        programs[f"launches/{name}"] = TimedProgram(fn, args, options=options)

    for power in (8, 14, 18, 20, 22, 24, 27):
        add(f"add_{1 << power}", lambda x: x + 1, Arg((1 << power,)))
    add("arithmetic", partial(_repeated, 512), large)
    add("iota", lambda: lax.iota(F32, 1 << 26) * 0.5)
    for length in (4, 64):
        add(f"chain_{length}", partial(_chain, length), small)
        add(f"chain_{length}_long", partial(_chain, min(length, 16)), large)
    for length in (16, 256):
        add(f"chain_{length}_no_graph", partial(_chain, length), small, **_NO_GRAPH)
    for kernels in (3, 10):
        add(f"loop_100_of_{kernels}", partial(_loop, 100, kernels), small)
        add(f"until_100_of_{kernels - 2}", partial(_until, 100.0, kernels - 2), small)
    products = partial(lax.fori_loop, 0, 100, lambda _, y: jnp.sin(y) @ y)
    add("loop_of_products", products, Arg((64, 64)))
    add("conditional", lambda x: lax.cond(x[0] > 0, jnp.sin, partial(_chain, 4), x), small)
    add("leaves", lambda *arrays: [x + 1 for x in arrays], *[Arg((256,), BF16)] * 200)
    return programs


def collective_programs(devices: Sequence[Any]) -> dict[str, TimedProgram]:
    """A program for each kind and size, over all devices; none for one device."""
    count = len(devices)
    if count < 2:
        return {}
    mesh = Mesh(np.array(devices), (_AXIS,))
    ring = [(number, (number + 1) % count) for number in range(count)]
    kinds: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: lax.psum(x, _AXIS),
        "all_gather": lambda x: lax.all_gather(x, _AXIS, tiled=True),
        "reduce_scatter": lambda x: lax.psum_scatter(x, _AXIS, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, _AXIS, 0, 0, tiled=True),
        "permute": lambda x: lax.ppermute(x, _AXIS, ring),
    }
    programs = {}
    for kind, fn in kinds.items():
        for power in (10, 14, 16, 18, 20, 22, 24, 26):
            for dtype, tag in ((jnp.float32, "f32"), (jnp.bfloat16, "bf16")):
                if tag == "bf16" and power % 4 != 2:
                    continue
                sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
                x = Arg((count << power,), dtype, sharding=sharding)
                programs[f"{kind}_{tag}_{1 << power}"] = TimedProgram(
                    jax.shard_map(
                        partial(_with_kernels, fn),
                        mesh=mesh,
                        in_specs=PartitionSpec(_AXIS),
                        out_specs=PartitionSpec(_AXIS),
                        check_vma=False,
                    ),
                    (x,),
                )
    return programs


def _with_kernels(collective: Callable[[Any], Any], x: Any) -> Any:
    """A collective between kernels, as in a step: the devices then start it at the same time."""
    before = lax.optimization_barrier(x * 2)
    return lax.optimization_barrier(collective(before)) + 1
