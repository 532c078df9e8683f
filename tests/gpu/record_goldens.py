"""Tunes, builds and times the repository's workloads on the attached GPUs: tuned goldens of a jax.

    python tests/gpu/record_goldens.py OUT [WORKLOAD|WORKLOAD@TOPOLOGY ...]

Without workloads, those for one GPU. Writes OUT/hlo/WORKLOAD/PLAN/, each with its lock,
run_record.json and time_record.json, to be copied into `hlo_dumps/`, and OUT/builds. Tuning and
timing run alone on the GPU; builds, which use the lock, compile beside each other. A workload that
fails is reported and left out; the exit code is then 1.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_CALLS = "15"
_BUILDS_AT_ONCE = 4


def main(out: Path, requests: list[str]) -> int:
    """Records each workload; 1 if one failed."""
    requests = requests or _for_one_gpu()
    folders = {request: _tuned(request, out) for request in requests}
    tuned = {request: folder for request, folder in folders.items() if folder is not None}
    with ThreadPoolExecutor(_BUILDS_AT_ONCE) as pool:
        built = dict(
            zip(
                tuned,
                pool.map(lambda request: _built(request, tuned[request], out), tuned),
                strict=True,
            )
        )
    timed = [_timed(folder, built[request]) for request, folder in tuned.items() if built[request]]
    print(f"{len(tuned)} of {len(requests)} tuned, {sum(timed)} timed", flush=True)
    return 0 if sum(timed) == len(requests) else 1


def _for_one_gpu() -> list[str]:
    """The registered workloads without a mesh, as the goldens in `hlo_dumps/` are named."""
    from xlapipe.registry import registered_workloads

    names = sorted(workload.name for workload in registered_workloads())
    return [name for name in names if not name.startswith(("fsdp-", "qwen3-train"))]


def _tuned(request: str, out: Path) -> Path | None:
    name, topology = _parts(request)
    dump = ["dump", name, *topology, "--target", "attached", "--tuning", "tune", "--jobs", "1"]
    rows = _xlapipe(*dump, "--out", out / "hlo")
    return Path(rows["dumps"][0]["path"]) if rows and rows["dumps"] else None


def _built(request: str, folder: Path, out: Path) -> Path | None:
    name, topology = _parts(request)
    build = out / "builds" / request.replace("@", "-")
    lock = folder / "autotune_lock.json"
    options = ["--target", "attached", "--tuning", str(lock), "--out", str(build)]
    return build if _xlapipe("build", name, *topology, *options) is not None else None


def _timed(folder: Path, build: Path | None) -> bool:
    if build is None:
        return False
    run = _xlapipe("run", build, "--profile", "--repeat", _CALLS, "--record", folder)
    return run is not None


def _parts(request: str) -> tuple[str, list[str]]:
    name, _, topology = request.partition("@")
    return name, ["--topology", topology] if topology else []


def _xlapipe(*arguments: str | Path | None) -> Any:
    """The JSON that a command printed; None, with its message printed, if it failed."""
    words = [str(argument) for argument in arguments]
    started = time.perf_counter()
    command = [sys.executable, "-m", "xlapipe", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(
        f"{time.perf_counter() - started:6.1f} s  {done.returncode}  {' '.join(words)}", flush=True
    )
    if done.returncode != 0:
        print(done.stderr[-2000:], flush=True)
        return None
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
