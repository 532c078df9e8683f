"""What the tests of Inductor's dumps share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def inductor(seeds: Path) -> Path:
    """Dumps with measurements, which are not part of the repository."""
    folder = seeds.parent / "inductor"
    if not folder.is_dir():
        pytest.skip(
            "the measured dumps are not here: no folder shared/inductor beside the checkout"
        )
    return folder
