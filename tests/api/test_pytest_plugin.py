"""The plugin in separate pytest runs, like those of a user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xlapipe.devices.environment.machine import Machine

pytestmark = pytest.mark.jax

NO_WHEELS = """
import pytest
from xlapipe.compile import doctor

@pytest.fixture(autouse=True)
def no_wheels(monkeypatch):
    missing = doctor.Check(
        name="libdevice", ok=False, found="nowhere", expected="a wheel", remedy="pip install it"
    )
    monkeypatch.setattr(doctor, "missing_to_compile", lambda platform: [missing])
"""
USES_IT = """
def test_plan(xlapipe_plan):
    xlapipe_plan(lambda x: x)
"""
# Without the plugins of other packages, which take seconds to start.
OTHERS = [f"-pno:{name}" for name in ("hypothesispytest", "anyio", "jaxtyping", "timeout")]
PYTEST = [sys.executable, "-Werror", "-mpytest", "-c", os.devnull, "--rootdir=.", *OTHERS]


def run(folder: Path, *arguments: str, ci: str = "") -> "subprocess.CompletedProcess[str]":
    """Runs pytest in `folder`, with warnings as errors and no configuration file."""
    return subprocess.run(
        [*PYTEST, *arguments],
        cwd=folder,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_without_the_fixture_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('xlapipe')\n"
        "    loaded = {name for name in sys.modules if name.startswith(('jax', 'xlapipe'))}\n"
        "    plugin = {'xlapipe.api', 'xlapipe.api.testing', 'xlapipe.api.testing.pytest_plugin'}\n"
        "    assert loaded == {'xlapipe', 'xlapipe.errors'} | plugin\n"
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "xlapipe ===" not in done.stdout
    assert not (tmp_path / ".pytest_cache" / "d" / "xlapipe").exists()


def test_marker(tmp_path: Path) -> None:
    assert "@pytest.mark.xlapipe_device: the test needs" in run(tmp_path, "--markers").stdout


def test_an_update_is_refused_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    done = run(tmp_path, "--xlapipe-update", ci="true")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--xlapipe-update: refused in CI" in done.stderr
    assert run(tmp_path, "--xlapipe-update", ci="false").returncode == 0


@pytest.mark.parametrize(("strict", "outcome"), [(False, "1 skipped"), (True, "1 failed")])
def test_without_the_wheels(strict: bool, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(NO_WHEELS)
    (tmp_path / "test_it.py").write_text(USES_IT)
    done = run(tmp_path, "-rs", *(["--xlapipe-strict"] if strict else []))
    # A fixture that fails is an error in pytest's count.
    assert outcome.replace("failed", "error") in done.stdout
    assert "libdevice: found nowhere, expected a wheel; fix: pip install it" in done.stdout


@pytest.mark.skipif(Machine.local().gpu() is not None, reason="a GPU is attached")
def test_errors_of_jax_about_a_missing_gpu_are_not_printed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import logging\n"
        "def test_it(xlapipe_plan):\n"
        "    log = logging.getLogger('jax._src.xla_bridge')\n"
        "    log.error('Jax plugin configuration error: %s', 'cuDNN not found')\n"
        "    log.error('another error')\n"
        "    raise AssertionError\n"
    )
    printed = run(tmp_path, "--tb=short").stdout
    assert "1 failed" in printed
    assert "another error" in printed
    assert "cuDNN not found" not in printed


def test_a_device_test_is_skipped_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from xlapipe.devices.environment.machine import Machine\nMachine.gpu = lambda self: None\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.xlapipe_device\ndef test_it(): raise AssertionError\n"
    )
    done = run(tmp_path, "-rs", "--strict-markers")
    assert "1 skipped" in done.stdout
    assert "no NVIDIA GPU is attached" in done.stdout


def test_an_unknown_target_is_one_error_at_the_line_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(USES_IT)
    done = run(tmp_path, "--xlapipe-target", "h20")
    assert "test_it.py:3: TargetError" in done.stdout
    assert "unknown target 'h20'" in done.stdout
    assert "xlapipe/compile/make_jobs.py" not in done.stdout


@pytest.mark.slow
def test_an_unwritable_cache_folder_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import numpy as np\n"
        "def test_plan(xlapipe_plan):\n"
        "    xlapipe_plan(lambda x: x, np.zeros(3))\n"
    )
    done = run(tmp_path, "--xlapipe-cache", "/proc/nowhere")
    assert "1 passed" in done.stdout and "1 compiled, 0 unchanged" in done.stdout


@pytest.mark.slow
def test_notes_on_a_step_are_printed_and_fail_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import jax\n"
        "import jax.numpy as jnp\n"
        "def test_plan(xlapipe_plan):\n"
        "    x = jax.ShapeDtypeStruct((8,), jnp.float32)\n"
        "    xlapipe_plan(lambda x, mask: x + 1, x, x)\n"
        "    xlapipe_plan(lambda x, mask: x + 1, x, x)\n"
    )
    done = run(tmp_path, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    note = "note: test_it.py::test_plan: 1 argument not used by the program: mask"
    assert done.stdout.splitlines().count(note) == 1
