"""Workloads for tests: broken ones and small good ones, compiled like a user's."""

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct

from xlapipe import Workload
from xlapipe.errors import WorkloadError
from xlapipe.expect import Aliased, LoopOfTrips, NoCopyAbove, NoCopyInLoopAbove

CACHE = ShapeDtypeStruct((64, 1024), jnp.bfloat16)
ROW = ShapeDtypeStruct((1024,), jnp.bfloat16)
CACHE_BYTES = 64 * 1024 * 2


def write(cache: dict[str, Any], row: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    updated = cache["k"].at[3].set(row)
    return {"k": updated}, updated[3] * 2


def _workload(name: str, fn: Any = write, **fields: Any) -> Workload:
    arguments: dict[str, Any] = {
        "args": ({"k": CACHE}, ROW),
        "donate_argnums": 0,
        "expectations": (Aliased("cache"), NoCopyAbove(CACHE_BYTES - 1)),
    }
    return Workload(name=name, fn=fn, **(arguments | fields))


def good() -> Workload:
    return _workload("good")


a_workload = _workload("attribute")


def does_not_lower() -> Workload:
    def mismatched(cache: dict[str, Any], row: jax.Array) -> jax.Array:
        return cache["k"] @ row[:7]

    return _workload("does-not-lower", mismatched)


def crashes() -> Workload:
    def abort(cache: dict[str, Any], row: jax.Array) -> jax.Array:
        os.kill(os.getpid(), signal.SIGABRT)
        return row

    return _workload("crashes", abort)


def ended_once() -> Workload:
    """A product whose first trace is ended by the signal in ENDED_ONCE, whose folder counts."""

    def end(x: jax.Array, y: jax.Array) -> jax.Array:
        folder, number = os.environ["ENDED_ONCE"].split(":")
        traced = Path(folder, "traced")
        if not traced.exists():
            traced.touch()
            os.kill(os.getpid(), int(number))
        return x @ y

    left, right = (ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 1024), (1024, 4096)))
    return Workload(name="ended-once", fn=end, args=(left, right))


def exits() -> Workload:
    def leave(cache: dict[str, Any], row: jax.Array) -> jax.Array:
        os._exit(3)

    return _workload("exits", leave)


def ends_as_llvm_does() -> Workload:
    """Writes the log of an XLA of which LLVM refuses a kernel, and exits."""

    def leave(cache: dict[str, Any], row: jax.Array) -> jax.Array:
        os.write(
            2,
            b"E1123 1 2 xtile_compiler.cc:576] LLVM Fatal Error while compiling Triton kernel: "
            b"size mismatch Context: Fusion: psum.1 = f32[] fusion(param)\n"
            b"F1123 1 2 error_handler.cc:44] *** Begin stack trace ***\n\n"
            b"*** End stack trace ***\n",
        )
        os._exit(1)

    return _workload("ends_as_llvm_does", leave)


def finds_mosaic_library() -> Workload:
    import jax.experimental.pallas.mosaic_gpu  # noqa: F401

    library = Path(os.environ["MOSAIC_GPU_RUNTIME_LIB_PATH"])
    raise WorkloadError(f"found the library of Mosaic GPU: {library.is_file()}")


def counts_cpu_devices() -> Workload:
    raise WorkloadError(f"found CPU devices: {len(jax.devices('cpu'))}")


def hangs() -> Workload:
    def sleep(cache: dict[str, Any], row: jax.Array) -> jax.Array:
        time.sleep(600)
        return row

    return _workload("hangs", sleep)


def no_such_option() -> Workload:
    return _workload("no-such-option", options={"xla_gpu_no_such_option": True})


def concrete_argument() -> Workload:
    return _workload("concrete-argument", args=({"k": CACHE}, "row"))


def unknown_axis() -> Workload:
    return _workload("unknown-axis", mesh={"x": 3}, in_specs=jax.sharding.PartitionSpec("y"))


def sharded() -> Workload:
    """Two devices: each has half of the rows of `x`, and the sum needs an all-reduce."""

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(x, axis=0)

    spec = jax.sharding.PartitionSpec("d", None)
    return Workload(
        name="sharded",
        fn=total,
        args=(CACHE,),
        mesh={"d": 2},
        in_specs=(spec,),
        out_specs=jax.sharding.PartitionSpec(),
    )


def over(devices: int = 2) -> Workload:
    """A mesh of `devices`; XLA chooses the output's sharding."""

    def double(x: jax.Array) -> jax.Array:
        return x * 2

    spec = jax.sharding.PartitionSpec("d")
    return Workload(name="over", fn=double, args=(CACHE,), mesh={"d": devices}, in_specs=spec)


def indivisible() -> Workload:
    return _over_devices("indivisible", {"d": 3}, jax.sharding.PartitionSpec("d"))


def specs_of_another_tree() -> Workload:
    return _over_devices("another-tree", {"d": 2}, ({"q": None}, None))


def specs_too_long() -> Workload:
    return _over_devices("too-long", {"d": 2}, jax.sharding.PartitionSpec(None, None, "d"))


def mesh_of_none() -> Workload:
    return _over_devices("mesh-of-none", {"d": 0}, None)


def twelve_devices() -> Workload:
    return _over_devices("twelve", {"d": 12}, None)


def _over_devices(name: str, mesh: dict[str, int], in_specs: Any) -> Workload:
    return _workload(name, mesh=mesh, in_specs=in_specs)


def not_a_workload() -> int:
    return 3


def raises() -> Workload:
    raise RuntimeError("no config found")


def pallas() -> Workload:
    """A Pallas kernel, whose lowering depends on the kind of GPU."""
    from jax.experimental import pallas as pl

    def double_and_add(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 2 + y[...]

    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        block = pl.BlockSpec((64, 128), lambda i: (i, 0))
        call = pl.pallas_call(
            double_and_add,
            out_shape=ShapeDtypeStruct(x.shape, x.dtype),
            grid=(8,),
            in_specs=[block, block],
            out_specs=block,
        )
        return jnp.tanh(call(x, y))

    argument = ShapeDtypeStruct((512, 128), jnp.float32)
    return Workload(name="pallas", fn=step, args=(argument, argument))


def _loop(name: str, body: Any, carried: int = 1) -> Workload:
    """Four trips over donated caches; `body(index, caches, row)` returns the next caches."""

    def loop(caches: tuple[jax.Array, ...], row: jax.Array) -> Any:
        return jax.lax.fori_loop(0, 4, lambda index, carry: body(index, carry, row), caches)

    return Workload(
        name=name,
        fn=loop,
        args=((CACHE,) * carried, ROW),
        donate_argnums=0,
        expectations=(
            Aliased("caches"),
            NoCopyInLoopAbove(CACHE_BYTES - 1),
            LoopOfTrips(4),
        ),
    )


def loop_in_place() -> Workload:
    def body(index: jax.Array, caches: Any, row: jax.Array) -> Any:
        return (caches[0].at[index].set(row + caches[0][index]),)

    return _loop("loop-in-place", body)


def loop_copies_carry() -> Workload:
    """Keeps the cache of the previous trip as well as the updated one: a full copy in each trip."""

    def body(index: jax.Array, caches: Any, row: jax.Array) -> Any:
        return caches[0].at[index].set(row + caches[1][index]), caches[0]

    return _loop("loop-copies-carry", body, 2)


def loop_hands_on() -> Workload:
    """Swaps the two caches in the carry: XLA copies both, and one of the copies looks in place."""

    def body(index: jax.Array, caches: Any, row: jax.Array) -> Any:
        return caches[1], caches[0] + row

    return _loop("loop-hands-on", body, 2)


def loop_of_unknown_trips() -> Workload:
    def loop(caches: tuple[jax.Array, ...], row: jax.Array) -> Any:
        def body(carry: Any) -> Any:
            cache, index = carry
            return cache.at[index].set(row), index + 1 + (cache[index, 0] > 0)

        return jax.lax.while_loop(lambda carry: carry[1] < 4, body, (caches[0], 0))

    return dataclasses.replace(
        _loop("loop-of-unknown-trips", None), fn=loop, expectations=(LoopOfTrips(4),)
    )
