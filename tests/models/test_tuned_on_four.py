"""Plans for four devices, tuned on four, compiled again without them."""

from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.dump.autotune_lock import LOCK
from xlapipe.dump.normal_form.plan import differences, read_normal_form

pytestmark = pytest.mark.jax


@pytest.mark.parametrize(
    "name", ["fsdp-mlp", pytest.param("qwen3-train", marks=pytest.mark.exhaustive)]
)
def test_the_plan_of_four_devices_is_compiled_again_without_them(
    name: str, goldens: Path, tmp_path: Path, jaxlib_version: str
) -> None:
    """test_workloads.py does this for two devices."""
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"locks are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")
    folder = goldens / name / f"h100_sxm-1x4-auto-tuned-jax{jaxlib_version}"
    (job,) = jobs_of([name], CompileSettings(tuning=folder / LOCK))
    written = make_dump(job, tmp_path)
    assert written.dump.manifest.topology == "1x4"
    assert differences(read_normal_form(folder), written.normal, name=name) == []
