"""Times the programs of a zoo on the attached GPU, and keeps XLA's files of each.

    python tests/gpu/time_zoo/time_zoo.py MODULE.py OUT COMPILE_SECONDS TOTAL_SECONDS [REGEX]

MODULE.py has a function `programs`, as `programs.py` has. Writes OUT/NAME/: the module after
optimisation, the thunk sequence, the tuner's logs and `calls.json`, the kernels of five profiled
calls.
"""

import importlib.util
import re
import sys
from pathlib import Path

import jax

from xlapipe.run.calibration.time_programs import time_programs, write_calls
from xlapipe.run.calibration.timed_program import TimedProgram


def programs_of(module: Path) -> dict[str, TimedProgram]:
    """The programs of a zoo, by FAMILY/NAME."""
    spec = importlib.util.spec_from_file_location(module.stem, module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    programs: dict[str, TimedProgram] = loaded.programs()
    return programs


def main(
    module: str, out: str, compile_seconds: str, total_seconds: str, pattern: str = ""
) -> None:
    programs = programs_of(Path(module))
    chosen = {name: item for name, item in programs.items() if re.search(pattern, name)}
    print(jax.devices(), len(chosen), "programs", flush=True)
    timed = 0
    for name, calls in time_programs(
        chosen,
        Path(out),
        compile_seconds=float(compile_seconds),
        total_seconds=float(total_seconds),
        report=lambda line: print(line, flush=True),
    ):
        write_calls(Path(out) / name, calls)
        timed += 1
    print(timed, "timed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
