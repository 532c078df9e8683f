"""Run records: the command without absolute paths, and the digests of the files beside it."""

import hashlib
import json
from pathlib import Path

import pytest

from xlapipe.dump.run_record import RUN_RECORD, portable_command, run_record, write_run_record


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "/tmp/hlo"], "--out '<elsewhere>/hlo'"),
        (["--out=/data/dumps/hlo"], "'--out=<elsewhere>/hlo'"),
        (["m:step(config='/data/model', n=2)"], "'m:step(config='\"'\"'<elsewhere>/model"),
        (["--options", "xla_a=/data/cuda,xla_b=/data/x"], "'xla_a=<elsewhere>/cuda,xla_b=<els"),
        (["m:step(paths=[/a/b,/c/d])"], "'m:step(paths=[<elsewhere>/b,<elsewhere>/d])'"),
        (["m:step", "--out", "hlo/tuned", "--topology", "1x2"], "m:step --out hlo/tuned --top"),
        (["m:step(share=1/2)", "--out", "../hlo"], "'m:step(share=1/2)' --out ../hlo"),
    ],
)
def test_a_recorded_command_has_no_absolute_path(arguments: list[str], expected: str) -> None:
    command = portable_command(["/opt/venv/bin/xlapipe", "dump", *arguments])
    assert command.startswith("xlapipe dump ")
    assert expected in command


def test_a_record_holds_the_portable_command_and_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hlo").mkdir()
    (tmp_path / "hlo" / "plan.txt").write_text("plan")
    record = run_record(
        device="NVIDIA H200",
        versions={"jaxlib": "0.11.2"},
        command=["/opt/venv/bin/xlapipe", "dump", "step", "--out", str(tmp_path / "hlo")],
    )
    for _ in range(2):  # the record itself is not among the files
        write_run_record(tmp_path / "hlo", record)
    written = json.loads((tmp_path / "hlo" / RUN_RECORD).read_text())
    assert written["command"] == "xlapipe dump step --out '<elsewhere>/hlo'"
    assert written["sha256"] == {"plan.txt": hashlib.sha256(b"plan").hexdigest()}
