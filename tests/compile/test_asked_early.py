"""What a module asks about its devices before the step is traced is listed, with the answer."""

import json
from pathlib import Path

import pytest

from xlapipe.cli import main

pytestmark = pytest.mark.jax

MODULE = """
import jax, jax.numpy as jnp
from jax import default_backend
from xlapipe import Workload

X = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def of(fn, **fields):
    return Workload(name="step", fn=fn, args=(X,), **fields)


def branches():
    is_gpu = default_backend() == "gpu"
    return of(lambda x: jnp.tanh(x) if is_gpu else jnp.sin(x))


def branches_inside():
    return of(lambda x: jnp.tanh(x) if jax.default_backend() == "gpu" else jnp.sin(x))


def asks_the_device():
    kind = jax.devices()[0].device_kind
    return of(lambda x: x * len(kind))


def same_number():
    return of(lambda x: x * jax.device_count(), mesh={"d": jax.device_count()})


def other_number():
    count = len(jax.local_devices())
    return of(lambda x: x * count, mesh={"d": 2})


def arrays():
    mesh = jax.make_mesh((1,), ("d",))
    ones = jax.device_put(jnp.ones((4, 4)), jax.devices("cpu")[0])
    return of(lambda x: x + ones + mesh.size)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asks with spaces")
    (folder / "asks.py").write_text(MODULE)
    return folder


@pytest.mark.parametrize(
    ("workload", "asked"),
    [
        ("branches", ["jax.default_backend() at asks.py:14 (cpu)"]),
        ("branches_inside", []),
        ("asks_the_device", ["jax.devices()[0] at asks.py:23 (cpu:0)"]),
        ("same_number", []),
        ("other_number", ["len(jax.local_devices()) at asks.py:32 (1)"]),
        ("arrays", []),
    ],
)
def test_answers_that_are_not_the_targets_are_listed(
    workload: str,
    asked: list[str],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(["dump", f"asks:{workload}", "--out", str(tmp_path), "--json"]) == 0
    (dump,) = json.loads(capsys.readouterr().out)["dumps"]
    manifest = json.loads((Path(dump["path"]) / "manifest.json").read_text())
    assert manifest.get("asked_early", []) == asked
    assert main(["check", dump["path"]]) == 0
    checked = capsys.readouterr().out
    assert ("about devices not the target's" in checked) == bool(asked)
