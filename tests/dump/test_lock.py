"""Autotune locks: round trip, and the error for a lock that does not fit or is invalid."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared.sample_records import LOCK
from xlapipe.devices.targets.catalogue import name_of_target, target_named
from xlapipe.dump.autotune_lock import (
    check_results,
    read_lock,
)
from xlapipe.errors import TargetError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "autotune_lock.json"
    path.write_bytes(LOCK.to_bytes())
    return path


def test_round_trip(path: Path) -> None:
    assert read_lock(path) == LOCK
    target = LOCK.as_target()
    assert (target.name, target.config_text) == ("h200", LOCK.target_config)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"workload": "other"}, "expected workload 'other', found 'step'"),
        ({"gemm_policy": "cublas"}, "expected gemm policy 'cublas', found 'auto'"),
        ({"target": "b200"}, "expected target 'b200', found 'h200'"),
        ({"device": "NVIDIA B200"}, "expected device 'NVIDIA B200', found 'NVIDIA H200'"),
        ({"jaxlib": "0.12.0.1"}, "expected jaxlib '0.12.0.1', found '0.11.2'"),
    ],
)
def test_a_lock_made_for_something_else_is_refused(expected: dict[str, str], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        LOCK.refuse_unless(where="lock", **expected)


def test_a_lock_that_fits_is_not_refused() -> None:
    LOCK.refuse_unless(
        where="lock", workload="step", gemm_policy="auto", target="h200", jaxlib="0.11.2"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"[]",
        b"{}",
        b'{"schema_version": 2}',
        json.dumps({**json.loads(LOCK.to_bytes()), "results": 3}).encode(),
        json.dumps({**json.loads(LOCK.to_bytes()), "results": "entries {"}).encode(),
        json.dumps({**json.loads(LOCK.to_bytes()), "results": "gpu_device_info {}"}).encode(),
        json.dumps({**json.loads(LOCK.to_bytes()), "versions": "0.11.2"}).encode(),
        LOCK.to_bytes()[:-20],
        b"[" * 100_000,
    ],
)
def test_an_invalid_lock_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(TargetError, match=r"autotune_lock\.json"):
        read_lock(path)


@pytest.mark.parametrize("text", ["version: 3\n", "", "results { device: 'a' }", LOCK.results])
def test_results_of_every_jaxlib(text: str) -> None:
    check_results(text, where="results")


def test_a_device_in_the_catalogue_has_the_catalogues_name() -> None:
    assert name_of_target(LOCK.as_target()) == "h200"
    unknown = replace(target_named("h200"), name="own", description="NVIDIA X1")
    assert name_of_target(unknown) == "own"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"device": "NVIDIA H20"}, "'NVIDIA H20' with 132"),
        ({"device": "NVIDIA H200 NVL"}, "'NVIDIA H200 NVL' with 132"),
        ({"target_config": "gpu_device_info { core_count: 78 }"}, "'NVIDIA H200' with 78"),
        ({"target": "b200"}, "'NVIDIA H200' with 132"),
    ],
)
def test_a_lock_of_another_device_than_its_targets_is_refused(
    path: Path, given: dict[str, str], found: str
) -> None:
    path.write_bytes(replace(LOCK, **given).to_bytes())
    with pytest.raises(TargetError, match=f"expected the device of target .*, found {found}"):
        read_lock(path)
    path.write_bytes(replace(LOCK, **{**given, "target": "own"}).to_bytes())
    assert read_lock(path).target == "own"
