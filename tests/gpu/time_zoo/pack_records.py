"""Packs what time_zoo.py wrote into a record.

python tests/gpu/time_zoo/pack_records.py FOLDER RECORD.tar.xz DEVICE DRIVER DATE [GPUS]
"""

import sys
from importlib.metadata import version
from pathlib import Path

from xlapipe.run.calibration.record import RecordAbout, record_of


def main(folder: str, record: str, device: str, driver: str, date: str, gpus: str = "1") -> None:
    command = f"python tests/gpu/time_zoo/time_zoo.py {Path(folder).name} OUT"
    versions = {name: version(name) for name in ("jax", "jaxlib", "jax-cuda13-plugin")}
    about = RecordAbout(device, driver, date, versions, command, int(gpus))
    Path(record).write_bytes(record_of(Path(folder), about))


if __name__ == "__main__":
    main(*sys.argv[1:])
