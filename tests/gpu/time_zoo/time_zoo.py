"""Times programs on the attached GPU, and keeps XLA's files of each.

    python tests/gpu/time_zoo/time_zoo.py WHICH OUT COMPILE_SECONDS TOTAL_SECONDS [REGEX]

WHICH: zoo, unseen, third to twentyeighth, two, calibration or collectives.

Writes OUT/NAME/: the module after optimisation, the thunk sequence, the tuner's logs and
`calls.json`, the kernels of five profiled calls.
"""

import re
import sys
from pathlib import Path

import jax
from eighteenth import eighteenth_programs
from eighth import eighth_programs
from eleventh import eleventh_programs
from fifteenth import fifteenth_programs
from fifth import fifth_programs
from fourteenth import fourteenth_programs
from fourth import fourth_programs
from nineteenth import nineteenth_programs
from ninth import ninth_programs
from programs import zoo_programs
from programs_of_two import programs_of_two
from seventeenth import seventeenth_programs
from seventh import seventh_programs
from sixteenth import sixteenth_programs
from sixth import sixth_programs
from tenth import tenth_programs
from third import third_programs
from thirteenth import thirteenth_programs
from twelfth import twelfth_programs
from twentieth import twentieth_programs
from twentyeighth import twentyeighth_programs
from twentyfifth import twentyfifth_programs
from twentyfirst import twentyfirst_programs
from twentyfourth import twentyfourth_programs
from twentysecond import twentysecond_programs
from twentyseventh import twentyseventh_programs
from twentysixth import twentysixth_programs
from twentythird import twentythird_programs
from unseen import unseen_programs

from xlapipe.running.calibration.collectives import collective_programs
from xlapipe.running.calibration.programs import calibration_programs
from xlapipe.running.calibration.time_programs import time_programs, write_calls


def main(which: str, out: str, compile_seconds: str, total_seconds: str, pattern: str = "") -> None:
    sets = {
        "zoo": zoo_programs,
        "unseen": unseen_programs,
        "third": third_programs,
        "fourth": fourth_programs,
        "fifth": fifth_programs,
        "sixth": sixth_programs,
        "seventh": seventh_programs,
        "eighth": eighth_programs,
        "ninth": ninth_programs,
        "tenth": tenth_programs,
        "eleventh": eleventh_programs,
        "twelfth": twelfth_programs,
        "thirteenth": thirteenth_programs,
        "fourteenth": fourteenth_programs,
        "fifteenth": fifteenth_programs,
        "sixteenth": sixteenth_programs,
        "seventeenth": seventeenth_programs,
        "eighteenth": eighteenth_programs,
        "nineteenth": nineteenth_programs,
        "twentieth": twentieth_programs,
        "twentyfirst": twentyfirst_programs,
        "twentysecond": twentysecond_programs,
        "twentythird": twentythird_programs,
        "twentyfourth": twentyfourth_programs,
        "twentyfifth": twentyfifth_programs,
        "twentysixth": twentysixth_programs,
        "twentyseventh": twentyseventh_programs,
        "twentyeighth": twentyeighth_programs,
        "two": programs_of_two,
        "calibration": calibration_programs,
        "collectives": lambda: collective_programs(jax.devices()),
    }
    programs = sets[which]()
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
