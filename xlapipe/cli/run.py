"""Run a built executable on the attached GPUs.

xlapipe run built
    run it on random inputs, and compare planned with measured memory
xlapipe run built --profile
    time each kernel
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import Options
from xlapipe.cli.output import print_json, print_text
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from xlapipe.run.run_result import ProfiledRun, RunResult

OPTIONS: Options = {
    "path DIR": "a folder written by `xlapipe build`; its machine code runs in this process: run "
    "only what you, or who you trust, built (SECURITY.md)",
    "--seed N": {"default": 0, "help": "of the random inputs; default: 0"},
    "--repeat N": {"default": 10, "help": "timed calls; default: 10"},
    "--distributed": "with the other processes that srun or mpirun started, one per GPU",
    "--profile": "time each kernel, and write time_record.json into the folder of --record",
    "--record FOLDER": "a dump of the same plan; default: DIR",
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.run.jax_distributed import is_first_process
    from xlapipe.run.run import run

    if options.record and not options.profile:
        raise XlapipeError("--record needs --profile; fix: add it, or leave --record out")
    result = run(
        options.path,
        seed=options.seed,
        repeat=options.repeat,
        distributed=options.distributed,
        profiled=options.repeat if options.profile else 0,
    )
    if options.distributed and not is_first_process():
        return 0  # the first process prints the result of all
    if result.profile is not None:
        _write_record(options.record or options.path, options.path, result)
    if options.json:
        print_json(result.to_json())
    else:
        for line in _result_lines(options.path, result):
            print_text(line)
    return 0


def _write_record(folder: Path, built: Path, result: "RunResult") -> None:
    """Writes the profile as a time record."""
    from statistics import median

    from xlapipe.dump.dump import read_manifest
    from xlapipe.dump.run_record import run_record
    from xlapipe.dump.time_record import TimeRecord, write_time_record

    assert result.profile is not None
    provenance = run_record(
        device=result.device,
        versions=read_manifest(built).versions,
        command=["xlapipe", *sys.argv[1:]],
    )
    record = TimeRecord.of(
        result.profile.measured,
        wall_seconds=result.median_call_seconds or result.first_call_seconds,
        profiled_wall_seconds=median(result.profile.call_seconds),
        **provenance,
    )
    write_time_record(folder, record)


def _result_lines(path: Path, result: "RunResult") -> Iterator[str]:
    count = f"{len(result.devices)} × " if len(result.devices) > 1 else ""
    processes = f" in {result.processes} processes" if result.processes > 1 else ""
    yield f"{path} on {count}{result.device}{processes}, {result.autotuning}"
    yield f"  loaded in {result.load_seconds:.3f} s"
    median = result.median_call_seconds
    if median is not None:
        yield f"  {median * 1000:.3f} ms per call (median of {len(result.call_seconds)})"
    if result.profile is not None:
        yield from _profile_lines(result.profile)
    for output in result.outputs:
        yield f"  {output.path} {output.dtype}{list(output.shape)} sha256 {output.sha256}"
    yield from _memory_lines(result)


def _profile_lines(profile: "ProfiledRun") -> Iterator[str]:
    measured = profile.measured
    yield (
        f"  profile of {measured.steps} calls: kernels {measured.kernel_seconds * 1e6:,.1f} µs per "
        f"call, from first start to last end {measured.span_seconds * 1e6:,.1f} µs"
    )
    if measured.before_seconds is not None and measured.after_seconds is not None:
        yield (
            f"  on the host: {measured.before_seconds * 1e6:,.1f} µs before the first kernel, "
            f"{measured.after_seconds * 1e6:,.1f} µs after the last one"
        )
    yield (
        f"  joined with the plan: {measured.matched_share:.2%} of the kernels' time "
        f"({measured.by_name_seconds * 1e6:,.1f} µs by the instruction's name, "
        f"{measured.by_order_seconds * 1e6:,.1f} µs by order in command buffers)"
    )


def _memory_lines(result: "RunResult") -> Iterator[str]:
    worst = result.worst
    if worst.memory is None:
        return
    if len(result.devices) > 1:
        yield f"  device {worst.device}, which used the most memory:"
    for name, value in asdict(worst.memory).items():
        yield f"  {name:<22} {value:>18,}"
    yield f"  unexplained: {worst.memory.unexplained_share:.3%} of the measured bytes"
