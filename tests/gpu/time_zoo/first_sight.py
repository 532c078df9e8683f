"""Predicts each zoo by the code of the time: `records/first_sight.json`.

    python tests/gpu/time_zoo/first_sight.py

Runs the code of the commit before a zoo's record on that record's plans, which takes minutes of CPU
and no GPU. Kept of each program: the predicted time, and of its kernels of each kind and basis the
seconds, and the seconds times their spread.
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile

from compare import RECORDS, TARGETS

from xlapipe.run.calibration.record import read_record

COMMITS = {
    "6a6a5b18": ("fifteenth", "sixteenth"),
    "e067012d": ("seventeenth",),
    "41f4d12a": ("eighteenth",),
    "5f2fc45c": ("nineteenth", "twentieth"),
    "ad5cae0a": ("twentyfirst", "twentysecond", "twentythird"),
    "00585165": ("twentyfourth", "twentyfifth"),
    "025af90b": ("twentysixth",),
    "553a37a8": ("twentyseventh", "twentyeighth"),
    "6f640542": ("blind",),
}
"""The zoos from the fifteenth on: earlier code had other rules for most kernels."""
# Has the records in a form that code without records reads.
_PLANS_COMMIT, _WITH_RECORDS = "0c44663d", ("6f640542",)
# Runs with the package of such a commit.
_FROM_RECORD = """
import json, sys
from pathlib import Path
from xlapipe.devices.targets.device import device_of_target as speeds_of_target
from xlapipe.run.calibration.record import read_record
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import predict
from xlapipe.time.predict.calibration import shipped_calibration
record, target, trips, *names = sys.argv[1:]
plan_of, trips = {item.name: item.plan for item in read_record(Path(record))[1]}, {}
"""
# Runs with the package of a commit without records; its modules had other names.
_FROM_PLANS = """
import json, sys
from pathlib import Path
from xlapipe.cost import step_cost
from xlapipe.predict import predict
from xlapipe.predict.calibration import shipped_calibration
from xlapipe.readers import read_path
from xlapipe.targets.speeds import speeds_of_target
try:
    from xlapipe.running.calibration.code_files import with_kernel_codes
except ImportError:
    with_kernel_codes = lambda plan, folder: plan
folder, target, trips, *names = sys.argv[1:]
trips = json.loads(trips)
plan_of = {
    name: with_kernel_codes(read_path(Path(folder) / name), Path(folder) / name) for name in names
}
"""
_PREDICT = """
speeds, calibration = speeds_of_target(target), shipped_calibration(target)
programs = {}
for name in names:
    plan = plan_of[name]
    prediction = predict(
        plan, step_cost(plan, speeds), calibration, unknown_trips=trips.get(name)
    )
    kinds = {}
    for kernel in prediction.kernels:
        row = kinds.setdefault((kernel.work.kind, kernel.launch.basis), [0.0, 0.0])
        row[0] += kernel.seconds
        row[1] += kernel.seconds * kernel.launch.spread
    seconds = prediction.span_seconds
    programs[name] = seconds, [[*key, *row] for key, row in sorted(kinds.items())]
print(json.dumps(programs))
"""


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def predicted(commit: str, zoo: str) -> dict[str, object]:
    """The programs of a zoo, as the code of a commit predicts them."""
    about, profiles = read_record(RECORDS / f"{zoo}.tar.xz")
    times = {profile.name: profile.times for profile in profiles}
    with tempfile.TemporaryDirectory() as folder:
        code = _git("archive", commit, "xlapipe")
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=code)
        read, source = _FROM_RECORD, str(RECORDS / f"{zoo}.tar.xz")
        if commit not in _WITH_RECORDS:
            read, source = _FROM_PLANS, f"{folder}/plans"
            plans = _git("show", f"{_PLANS_COMMIT}:tests/gpu/time_zoo/records/{zoo}.plans.tar.xz")
            with tarfile.open(fileobj=io.BytesIO(plans)) as archive:
                archive.extractall(source, filter="data")
        command = [sys.executable, "-c", read + _PREDICT, source, TARGETS[about.device]]
        trips = {name: item.trips for name, item in times.items() if item.trips}
        command += [json.dumps(trips), *times]
        result = subprocess.run(command, check=True, capture_output=True, cwd=folder, text=True)
    return {
        name: {
            "seconds": _rounded(seconds),
            "measured_seconds": times[name].span_seconds,
            "kinds": [[kind, basis, *map(_rounded, parts)] for kind, basis, *parts in kinds],
        }
        for name, (seconds, kinds) in json.loads(result.stdout).items()
    }


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout


def main() -> None:
    zoos = {
        zoo: {"commit": commit, "programs": predicted(commit, zoo)}
        for commit, names in COMMITS.items()
        for zoo in names
    }
    text = json.dumps({"zoos": zoos}, separators=(",", ":"))
    path = RECORDS / "first_sight.json"
    path.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
