"""Packs what time_zoo.py wrote: plans into an archive, measured times into a JSON file.

    python tests/gpu/time_zoo/pack_records.py FOLDER RECORDS DEVICE DATE

Writes RECORDS.plans.tar.xz and RECORDS.json.
"""

import json
import sys
import tarfile
from pathlib import Path
from statistics import median

from xlapipe.run.calibration.calibrate import read_profiles
from xlapipe.run.calibration.code_files import KERNEL_CODES


def main(folder: str, records: str, device: str, date: str) -> None:
    programs = {}
    for profile in read_profiles(Path(folder)):
        measured = profile.measured
        programs[profile.name] = {
            "span_seconds": round(measured.span_seconds, 9),
            "kernel_seconds": round(measured.kernel_seconds, 9),
            "wall_seconds": round(median(profile.wall_seconds), 9),
            "kernels": {
                kernel.name: [kernel.launches, round(kernel.seconds, 9)]
                for kernel in measured.kernels
            },
        }
    about = {
        "device": device,
        "date": date,
        "driver": "580.159.04",
        "versions": {"jax": "0.11.2", "jaxlib": "0.11.2", "jax-cuda13-plugin": "0.11.2"},
        "command": f"python tests/gpu/time_zoo/time_zoo.py {Path(folder).name} OUT",
    }
    text = json.dumps({**about, "programs": programs}, separators=(",", ":"), sort_keys=True)
    Path(f"{records}.json").write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    with tarfile.open(f"{records}.plans.tar.xz", "w:xz") as archive:
        for path in sorted(Path(folder).rglob("*")):
            if path.name.endswith((".hlo.pb", "thunk_sequence.txt", KERNEL_CODES)):
                archive.add(path, str(path.relative_to(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
