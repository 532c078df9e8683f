"""Compile small steps while processes are killed, stopped and interrupted; needs no GPU.

    python3 tests/gpu/stress.py --compiles 2000 --jobs 16 --out OUT

Each compile must end, with a plan or with one error, within the limit of one compile and of the
start of its process. What does not is listed as `HANGS`, with stacks in OUT/*.errors.
"""

import argparse
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILE_SECONDS, MOST_SECONDS = 60.0, 150.0
SIGNALS = [signal.SIGKILL] * 3 + [signal.SIGSTOP] * 3 + [signal.SIGINT, signal.SIGTERM]


def work() -> None:
    """Compiles until it is ended; writes a line before and after each compile."""
    sys.path.insert(0, str(ROOT))
    faulthandler.register(signal.SIGUSR1)
    import jax
    import jax.numpy as jnp

    import xlapipe

    while True:
        rows = 8 * random.randrange(1, 400)  # sometimes the same as those of another worker
        began, outcome = time.monotonic(), "plan"
        print("{}", flush=True)
        try:
            step = jax.jit(lambda x: jnp.tanh(x) @ x.T)
            shape = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
            xlapipe.plan(step, shape, tuning="none", timeout=COMPILE_SECONDS)
        except KeyboardInterrupt:
            outcome = "KeyboardInterrupt"
        except xlapipe.XlapipeError as error:
            outcome = f"{type(error).__name__}: {str(error).partition(': ')[2]:.46}"
        seconds = round(time.monotonic() - began, 2)
        print(json.dumps({"outcome": outcome, "seconds": seconds}), flush=True)


def below(process: int) -> list[int]:
    """Process ids of all that a process started."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [item for child in map(int, text.split()) for item in (child, *below(child))]
    return []


def send(number: int, *processes: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiles", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=500, help="ends after this time")
    options = parser.parse_args()
    if options.out is None:
        work()  # a process that this script has started
    (out := options.out.absolute()).mkdir(parents=True, exist_ok=True)
    own = f"XDG_CACHE_HOME={out}"
    waits: dict[str, list[float]] = defaultdict(list)
    workers: dict[int, subprocess.Popen[bytes]] = {}
    read, since = defaultdict[int, int](int), dict[int, float]()
    stopped: dict[int, float] = {}
    began = now = time.monotonic()
    while sum(map(len, waits.values())) < options.compiles and now < began + options.seconds:
        time.sleep(0.2)
        now = time.monotonic()
        for number in range(options.jobs):
            log, worker = out / f"worker-{number}.jsonl", workers.get(number)
            content = log.read_bytes()[read[number] :] if log.exists() else b""
            for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
                read[number], since[number] = read[number] + len(line), now
                with suppress(ValueError):  # a line that a kill has cut
                    if row := json.loads(line):
                        waits[row["outcome"]].append(row["seconds"])
            if worker and worker.poll() is None and now > since[number] + MOST_SECONDS:
                waits["HANGS"].append(now - since[number])
                send(signal.SIGUSR1, worker.pid, *below(worker.pid))
                time.sleep(1)
                worker.kill()
                worker.wait()
            if worker is None or worker.poll() is not None:
                with log.open("ab") as stream, Path(f"{log}.errors").open("ab") as errors:
                    command = ["env", own, sys.executable, __file__]
                    workers[number] = subprocess.Popen(command, stdout=stream, stderr=errors)
                since[number] = now
        for process in [item for item, end in stopped.items() if end < now]:
            send(signal.SIGCONT, process)
            del stopped[process]
        if random.random() > options.jobs / 32:  # each worker is hit every 6 s
            continue
        root = random.choice(list(workers.values())).pid
        if targets := [*below(root), *[root] * (random.random() < 0.1)]:
            target, chosen = random.choice(targets), random.choice(SIGNALS)
            send(chosen, target)
            if chosen == signal.SIGSTOP:  # for ever, once in ten times
                stopped[target] = now + (1e9 if random.random() < 0.1 else 3) * (target != root)
    for worker in workers.values():
        worker.kill()
    send(signal.SIGCONT, *stopped)
    time.sleep(5)
    environments = Path("/proc").glob("[0-9]*/environ")
    left = [path for path in environments if f"{own}\0".encode() in bytes_of(path)]
    send(signal.SIGKILL, *(int(path.parent.name) for path in left))
    print(f"{sum(map(len, waits.values()))} compiles in {now - began:.0f} s")
    for outcome, seconds in sorted(waits.items(), key=lambda item: -len(item[1])):
        print(f"{len(seconds):6}  {max(seconds):6.1f} s at most  {outcome}")
    longest = max((max(seconds) for seconds in waits.values()), default=0.0)
    print(f"{len(left)} processes left over; the longest wait: {longest:.1f} s")
    sys.exit("HANGS" in waits or bool(left))


def bytes_of(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


if __name__ == "__main__":
    main()
