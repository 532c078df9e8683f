"""Every test runs in the repository's folder, where its workloads are registered."""

import pytest

from tests.tpu.live import ROOT


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
