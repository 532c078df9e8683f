"""Provokes memory failures of programs on several GPUs, and keeps what they print.

    python tests/gpu/provoke_nccl_failures.py all OUT SECONDS

writes OUT/NAME.log for each case, and ends after SECONDS. Needs four GPUs that others do not use.
Cases of one pair of GPUs run while those of the other pair do. Each case is a separate process; for
those of `FULL`, another process takes all memory that is left on their two GPUs once they have
prepared.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from provoke_full_device import wait_for

CASES: dict[str, tuple[Callable[[], Callable[[], Any]], dict[str, str]]] = {}
_ALWAYS = {"PYTHONUNBUFFERED": "1", "XLA_CLIENT_MEM_FRACTION": "0.04"}
# Seconds that a case may take; a process that lost its peer would wait for minutes.
_CASE_SECONDS = 25.0
GIB = 2**30
# Of an H200 these leave about 690, 465 and 164 MB outside the pool and the CUDA context. A
# communicator of two takes 904 MB, but is made in one process with 465 MB too.
_LITTLE_ROOM, _LESS_ROOM, _NO_ROOM = "0.9915", "0.993", "0.995"


def case(**environment: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Registers a function that prepares a case and returns what to run, with its environment."""

    def add(prepare: Callable[[], Any]) -> Callable[[], Any]:
        CASES[prepare.__name__] = prepare, environment
        return prepare

    return add


def collective(name: str, gib: float = 0.001, memory_kind: str | None = None) -> Callable[[], Any]:
    """A compiled collective over all GPUs of the process, and its argument."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count = len(jax.devices())
    mesh = Mesh(jax.devices(), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec("d"), memory_kind=memory_kind)
    columns = 1024 * count
    rows = max(1, int(gib * GIB / 4 / columns)) * count
    operations = {
        "psum": lambda x: jax.lax.psum(x, "d"),
        "all_to_all": lambda x: jax.lax.all_to_all(x, "d", 1, 1, tiled=True),
        "ppermute": lambda x: jax.lax.ppermute(x, "d", [(0, 1), (1, 0)]),
    }

    def exchange(x: Any) -> Any:
        spec = PartitionSpec("d")
        return jax.shard_map(operations[name], mesh=mesh, in_specs=spec, out_specs=spec)(x)

    exchange.__name__ = f"exchange_{name}"
    x = jax.device_put(jnp.ones((rows, columns)), sharding)
    program = jax.jit(exchange).lower(x).compile()
    return lambda: jax.block_until_ready(program(x))


@case(XLA_CLIENT_MEM_FRACTION=_NO_ROOM)
def nccl_init_without_room_or_warnings() -> Callable[[], Any]:
    return collective("psum")


@case(XLA_CLIENT_MEM_FRACTION=_LITTLE_ROOM, NCCL_DEBUG="WARN", NCCL_CUMEM_ENABLE="0")
def nccl_init_without_cumem() -> Callable[[], Any]:
    return collective("psum")


@case(
    XLA_CLIENT_MEM_FRACTION="0.95",
    NCCL_DEBUG="WARN",
    NCCL_BUFFSIZE=str(GIB),
    NCCL_MIN_NCHANNELS="16",
    NCCL_PROTO="Simple",
)
def nccl_huge_buffers() -> Callable[[], Any]:
    return collective("psum", gib=0.5)


@case(XLA_CLIENT_MEM_FRACTION="0.25")
def one_of_two_pools_is_full() -> Callable[[], Any]:
    """The second GPU holds an array beside its part of the program."""
    import jax
    import jax.numpy as jnp

    run = collective("psum", gib=10)
    held = jax.device_put(jnp.ones(int(20 * GIB / 4)), jax.devices()[1])
    return lambda: (run(), held.shape)


@case(XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB="1")
def pinned_host_memory() -> Callable[[], Any]:
    import jax
    import numpy as np

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    host = np.zeros((GIB // 4, 2), np.float32)
    return lambda: jax.block_until_ready(jax.device_put(host, sharding))


@case(XLA_CLIENT_MEM_FRACTION=_LESS_ROOM, NCCL_DEBUG="WARN")
def nccl_init_of_two_processes() -> Callable[[], Any]:
    """This process is the first of two, and starts the second."""
    import jax

    first = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]
    second = os.environ.get("SECOND_PROCESS")
    if second is None:
        other = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[1]
        environment = {**os.environ, "SECOND_PROCESS": "1", "CUDA_VISIBLE_DEVICES": other}
        subprocess.Popen([sys.executable, __file__, "nccl_init_of_two_processes"], env=environment)
        os.environ["CUDA_VISIBLE_DEVICES"] = first
    jax.distributed.initialize("127.0.0.1:41717", 2, 0 if second is None else 1)
    return collective("psum")


@case(NCCL_DEBUG="WARN")
def full_nccl_init() -> Callable[[], Any]:
    return collective("psum")


@case()
def full_nccl_init_without_warnings() -> Callable[[], Any]:
    return collective("all_to_all")


@case(NCCL_DEBUG="WARN")
def full_nccl_second_collective() -> Callable[[], Any]:
    """The communicator exists; the first message between two ranks needs its own buffers."""
    first, second = collective("psum"), collective("ppermute")
    first()
    return second


@case(NCCL_DEBUG="WARN", XLA_FLAGS="--xla_gpu_enable_nccl_user_buffers=true")
def full_nccl_user_buffers() -> Callable[[], Any]:
    first = collective("psum")
    first()

    def grow() -> None:
        for gib in (0.1, 0.5, 1.0):
            collective("psum", gib)()

    return grow


@case(XLA_CLIENT_PREALLOCATE="false")
def full_pool_too_small() -> Callable[[], Any]:
    return collective("psum", gib=4)


@case()
def full_no_context() -> Callable[[], Any]:
    def run() -> None:
        import jax.numpy as jnp

        print(jnp.ones(8).sum())

    return run


FULL = tuple(name for name in CASES if name.startswith("full_"))
PAIRS = {
    "0,1": (
        "nccl_huge_buffers",
        "nccl_init_without_cumem",
        "one_of_two_pools_is_full",
        "pinned_host_memory",
    ),
    "2,3": (
        "nccl_init_of_two_processes",
        "nccl_init_without_room_or_warnings",
    ),
}


def run_case(name: str, folder: Path | None) -> None:
    """Prepares a case, waits until the devices are full if it is one of `FULL`, and runs it."""
    try:
        run = CASES[name][0]()
    finally:
        if folder is not None:
            (folder / f"{name}.ready").touch()
    if folder is not None:
        wait_for(folder / "full")
    print("prepared", flush=True)
    run()
    print("the run survived", flush=True)


def fill(folder: Path) -> None:
    """Takes all free memory of each visible device, again and again, until `folder/done` exists."""
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    count, device = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    contexts = [ctypes.c_void_p() for _ in range(count.value)]
    for ordinal, context in enumerate(contexts):
        assert driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    largest = 2**34
    while not (folder / "done").exists():
        for context in contexts:
            driver.cuCtxSetCurrent(context)
            _take(driver, largest)
        largest = 2**26
        (folder / "full").touch()


def _take(driver: Any, size: int) -> None:
    address = ctypes.c_ulonglong()
    while size >= 2**12:
        if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != 0:
            size //= 2


@contextmanager
def started(out: Path, pair: str, *arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A process of this script, whose output is in a file; it and its children are killed."""
    name = arguments[0]
    own = CASES[name][1] if name in CASES else {}
    environment = {**os.environ, **_ALWAYS, **own, "CUDA_VISIBLE_DEVICES": pair}
    with (out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(name: str, process: "subprocess.Popen[bytes]", end: float, start: float) -> None:
    """Waits for a case, and prints its exit code and its seconds."""
    try:
        code: int | str = process.wait(max(0.1, min(_CASE_SECONDS, end - time.monotonic())))
    except subprocess.TimeoutExpired:
        code = "took too long"
    print(f"{name}: {code} after {time.monotonic() - start:.1f} s", flush=True)


def run_alone(out: Path, pair: str, names: Sequence[str], end: float) -> None:
    """Runs cases one after another, as long as there is time."""
    for name in names:
        start = time.monotonic()
        if start + 5 < end:
            with started(out, pair, name) as process:
                finish(name, process, end, start)


def run_full(out: Path, pair: str, end: float) -> None:
    """Runs the cases of `FULL` together on two devices that get full."""
    folder = out / "signals"
    folder.mkdir(exist_ok=True)

    start = time.monotonic()
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(started(out, pair, name, str(folder))) for name in FULL
        }
        try:
            for name in FULL:
                wait_for(folder / f"{name}.ready", 30)
        except TimeoutError as error:
            print(error, flush=True)
        stack.enter_context(started(out, pair, "fill", str(folder)))
        end = min(end, time.monotonic() + _CASE_SECONDS)
        for name, process in running.items():
            finish(name, process, end, start)
        (folder / "done").touch()


def run_all(out: Path, seconds: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    first, second = PAIRS

    def first_pair() -> None:
        run_full(out, first, end)
        run_alone(out, first, PAIRS[first], end)

    lanes = [
        threading.Thread(target=first_pair),
        threading.Thread(target=run_alone, args=(out, second, PAIRS[second], end)),
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "all":
        run_all(Path(rest[0]), float(rest[1]))
    elif command == "fill":
        fill(Path(rest[0]))
    else:
        run_case(command, Path(rest[0]) if rest else None)
