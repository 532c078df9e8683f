"""Run records: the command without absolute paths, and the digests of the files beside it."""

import hashlib
import json
from pathlib import Path

import pytest

from xlapipe.dump.run_record import RUN_RECORD, portable_command, run_record, write_run_record


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    (tmp_path / "checkout" / "steps").mkdir()
    return tmp_path / "checkout"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--out", "{checkout}/hlo"], "--out hlo"),
        (["--out={checkout}/hlo"], "--out=hlo"),
        (["--out", "{checkout}"], "--out ."),
        (["--out", "{checkout}/../checkout/hlo"], "--out hlo"),
        (["--out", "/tmp/hlo"], "--out '<elsewhere>/hlo'"),
        (["--out", "{checkout}-2/hlo"], "--out '<elsewhere>/hlo'"),
        (["--out=/data/my dumps/hlo 2"], "'--out=<elsewhere>/hlo 2'"),
        (["--target-config", "/data/h200.txtpb"], "--target-config '<elsewhere>/h200.txtpb'"),
        (["m:step(config='/data/my model', n=2)"], "'m:step(config='\"'\"'<elsewhere>/my model"),
        (["--options", "xla_a=/data/cuda,xla_b=/data/x"], "'xla_a=<elsewhere>/cuda,xla_b=<els"),
        (["m:step(paths=[/a/b,/c/d])"], "'m:step(paths=[<elsewhere>/b,<elsewhere>/d])'"),
        (["m:step", "--out", "hlo/tuned", "--topology", "1x2"], "m:step --out hlo/tuned --top"),
        (["m:step(share=1/2)"], "'m:step(share=1/2)'"),
    ],
)
def test_a_recorded_command_has_no_absolute_path(
    arguments: list[str], expected: str, checkout: Path
) -> None:
    given = [argument.format(checkout=checkout) for argument in arguments]
    command = portable_command(["/opt/venv/bin/xlapipe", "dump", *given], checkout)
    assert command.startswith("xlapipe dump ")
    assert expected in command
    assert str(checkout.parent) not in command


def test_paths_in_the_checkout_are_relative_to_the_current_folder(checkout: Path) -> None:
    command = ["xlapipe", "dump", "--out", f"{checkout}/hlo"]
    assert portable_command(command, checkout / "steps") == "xlapipe dump --out ../hlo"


def test_a_path_through_a_link_to_the_checkout_is_relative(checkout: Path) -> None:
    link = checkout.parent / "link"
    link.symlink_to(checkout)
    command = ["xlapipe", "dump", "--out", f"{link}/hlo"]
    assert portable_command(command, checkout) == "xlapipe dump --out hlo"


def test_a_record_holds_the_portable_command_and_digests(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    (checkout / "hlo").mkdir()
    (checkout / "hlo" / "plan.txt").write_text("plan")
    record = run_record(
        device="NVIDIA H200",
        versions={"jaxlib": "0.11.2"},
        command=["/opt/venv/bin/xlapipe", "dump", "step", "--out", str(checkout / "hlo")],
    )
    for _ in range(2):  # the record itself is not among the files
        write_run_record(checkout / "hlo", record)
    written = json.loads((checkout / "hlo" / RUN_RECORD).read_text())
    assert written["command"] == "xlapipe dump step --out hlo"
    assert written["sha256"] == {"plan.txt": hashlib.sha256(b"plan").hexdigest()}
