"""XProf reads the output of `xlapipe report --xprof`, and reports the same bytes; `make bench`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xlapipe.cli import main

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DUMPS = sorted(path.parent for path in (ROOT / "hlo_dumps").glob("*/*/manifest.json"))
DUMPS += sorted(path.parent for path in (ROOT / "tests/data").glob("*/*/*.hlo.pb.gz"))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_xprof_reports_the_same_bytes(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """XProf offers its memory viewer, and its total of memory space 0 equals xlapipe's.

    XProf excludes thread-local allocations, and colors other than 0 (memory of collectives).
    """
    pytest.importorskip("xprof", reason="`make bench` installs xprof")
    assert main(["report", str(dump), "--xprof", str(tmp_path)]) == 0
    (run,) = (tmp_path / "plugins/profile").iterdir()
    done = subprocess.run(
        [sys.executable, HERE / "xprof_peak.py", run], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    xprof = json.loads(done.stdout.splitlines()[-1])
    assert "memory_viewer" in xprof["tools"]

    capsys.readouterr()
    assert main(["show", str(dump), "--json"]) == 0
    allocations = json.loads(capsys.readouterr().out)["allocations"]
    on_device = sum(
        allocation["size_bytes"]
        for allocation in allocations
        if allocation["color"] == 0 and "thread-local" not in allocation["kinds"]
    )
    xprof_bytes = round(xprof["totalBufferAllocationMib"] * 2**20)
    print(f"\n{dump.parent.name}/{dump.name}: xlapipe {on_device:,} B, xprof {xprof_bytes:,} B")
    assert xprof_bytes == on_device
