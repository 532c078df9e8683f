"""The log of XLA's tuner, of jax 0.11.2 on an H200."""

import pytest

from tests.folders import DATA
from tests.gpu.tuner_logs import read_logs
from xlapipe.files.contents import read_packed


def test_every_candidate_that_ran_has_its_time() -> None:
    logs = read_logs(read_packed(DATA / "tuning" / "tuning_logs.textproto.gz").decode())
    assert sum(map(len, logs.values())) == 119
    first = next(iter(logs.values()))
    assert min(item.seconds for item in first) == pytest.approx(168.768e-6)
    assert max(item.scratch_bytes for item in first) == 33_554_432
    assert {item.backend for item in first} == {"CUBLASLT_FISSION", "TRITON"}
