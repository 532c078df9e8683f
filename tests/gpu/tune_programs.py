"""Tunes short programs on the attached GPU: results for predicted tuning, with a new jax too.

    python tests/gpu/tune_programs.py OUT SECONDS [THREADS]

Tunes as many of `tuner_programs.py` as the time allows, and writes OUT/tuned.jsonl (instructions,
with the best candidate of each backend) and OUT/results.pbtxt (XLA's choices). Without a GPU,
`python -m tests.gpu.predicted_locks tuned OUT LOCK` makes a table of both; LOCK is any lock of the
same device and jaxlib.
"""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OUT, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
THREADS = int(sys.argv[3]) if len(sys.argv) > 3 else 6
STARTED = time.perf_counter()
OUT.mkdir(parents=True, exist_ok=True)
os.environ["XLA_FLAGS"] = f"--xla_gpu_dump_autotune_results_to={OUT / 'results.pbtxt'}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from tuner_logs import read_logs  # noqa: E402
from tuner_programs import programs  # noqa: E402

from xlapipe.compile.compile_program import fingerprint_text  # noqa: E402
from xlapipe.devices.environment.scratch import scratch_folder  # noqa: E402
from xlapipe.run.calibration.timed_program import TimedProgram  # noqa: E402
from xlapipe.time.predicted_locks.fingerprint import fingerprint  # noqa: E402
from xlapipe.time.predicted_locks.form import form_of  # noqa: E402
from xlapipe.time.predicted_locks.instructions import tuned_instructions  # noqa: E402

# The tuner of other fusions takes as long, and its choices need no memory.
_OPTIONS = {"xla_gpu_experimental_enable_fusion_autotuner": False}
_DONE: list[int] = []


def tuned(name: str, program: TimedProgram) -> list[dict[str, Any]]:
    """What the tuner measured of a program's instructions that have a form."""
    with scratch_folder() as scratch:
        logs = scratch / "logs.textproto"
        options = {
            "xla_dump_to": str(scratch),
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": False,
            "xla_gpu_dump_autotune_logs_to": str(logs),
            **_OPTIONS,
        }
        jax.jit(program.fn).lower(*program.structs()).compile(compiler_options=options)
        files = sorted(scratch.glob("*.before_config_assignment.hlo.pb"))
        texts = [fingerprint_text(path.read_bytes()) for path in files]
        candidates = read_logs(logs.read_text(encoding="utf-8"))
    rows = []
    for text in tuned_instructions("\n".join(texts)):
        form, key = form_of(text), fingerprint(text)
        if form is None or key is None:
            continue
        best: dict[str, tuple[float, int]] = {}
        for it in candidates.get(key, ()):
            own = it.seconds, it.scratch_bytes
            best[it.backend] = min(own, best.get(it.backend, own))
        rows.append({"program": name, "fingerprint": key, "form": vars(form), "best": best})
    return rows


def main() -> None:
    lock = threading.Lock()
    source = programs()

    def work() -> None:
        while time.perf_counter() - STARTED < SECONDS:
            with lock:
                name, program = next(source)
            try:
                rows = tuned(name, program)
            except Exception as error:  # noqa: BLE001  # the others are tuned nevertheless
                print(f"{name}: {error!s:.200}", flush=True)
                continue
            with lock, (OUT / "tuned.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
                _DONE.append(len(rows))

    pool = ThreadPoolExecutor(THREADS)
    futures = [pool.submit(work) for _ in range(THREADS)]
    for future in futures:
        future.result(timeout=SECONDS + 60)
    # XLA writes the results of the whole process after each compile; the last one comes alone.
    jax.jit(lambda x: x @ x).lower(jnp.ones((48, 48))).compile()
    seconds = time.perf_counter() - STARTED
    print(f"{sum(_DONE)} instructions of {len(_DONE)} programs in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # the pool's threads may still wait
