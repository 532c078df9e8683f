"""What cannot be compiled as it would run is refused: by name, with the place and the fix."""

import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.zoo.fixed import FIXED
from xlapipe.cli import main
from xlapipe.lowering.lower import lower
from xlapipe.targets.catalogue import target_named

# Parts of each message: the leaf, the function or the source line, and what to write instead.
REFUSED = {
    "pmapped": ["jax.pmap", "jax.shard_map(jax.vmap(f)", "mesh={'i': devices}"],
    "lost_donation": ["'update'", "donates", "donate_argnums="],
    "static_string": ["mode", "str", "static_argnames="],
    "two_meshes": ["[0][0]", "[0][1]", "{'a': 2, 'b': 2}", "{'x': 4}", "over one mesh"],
    "specs_and_shardings": ["x", "in_specs", "fix: "],
    "asks_for_memory": ["memory_stats", "refused.py:35"],
    "asks_cudnn_itself": ["cuDNN not found", "refused.py:47", "pip install 'xlapipe[cudnn]'"],
    "own_mesh_in_shard_map": [
        *("shard_map", "{'a': 2, 'b': 2}", "refused.py:52"),
        *("mesh=that mesh", "leave mesh= out"),
    ],
    "jitted_shardings_and_mesh": ["in_shardings", "{'x': 4}", "leave mesh= out"],
    "metadata_of_a_checkpoint": ["state['w']", "ShardingMetadata", "jax.tree.map(lambda leaf"],
    "keras_train_function": ["takes an iterator", "jax.jit(model.train_step, donate_argnums=0)"],
    "dtype_as_argument": ["dtype", "numpy.float16", "static_argnames="],
    "donation_in_a_library": ["of a library", "fix: name the arguments in donate_argnums="],
    "jitted_for_a_backend": ["backend='cpu'", "leave backend= out", "--target"],
    "without_jit": ["operation by operation", "jax_disable_jit"],
    "set_mesh_and_mesh": ["jax.set_mesh has set", "Explicit", "leave mesh= out"],
    "updates_in_place": ["model.bias", "in place", "nnx.jit(fn)"],
    "empty_program": ["returns nothing", "as an argument and return it"],
    "reordered_devices": ["[0][0]", "[1, 0, 2, 3]", "jax.make_mesh"],
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The message of each refusal, by workload; nothing is written."""
    out = tmp_path_factory.mktemp("refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent)
        messages = {name: _message(name, out / "dumps") for name in REFUSED}
    assert not (out / "dumps").exists()
    return messages


def _message(name: str, dumps: Path) -> str:
    text = StringIO()
    with redirect_stdout(text), redirect_stderr(StringIO()):
        code = main(["dump", f"refused:{name}", "--out", str(dumps), "--json"])
    assert code == 2, name
    (error,) = json.loads(text.getvalue())["errors"]
    return json.dumps(error, ensure_ascii=False)


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_workload_place_and_fix(name: str, errors: Mapping[str, str]) -> None:
    assert name in errors[name]
    for part in REFUSED[name]:
        assert part in errors[name], errors[name]
    assert "Traceback" not in errors[name]


@pytest.mark.parametrize("name", FIXED)
def test_the_fix_of_the_message_works(name: str) -> None:
    assert name in REFUSED
    program = lower(FIXED[name], target_named("h200").config_text)
    assert program.outputs


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("prints", "the step calls back into Python on the host (refused.py:40)"),
        ("attends_with_cudnn", "the step calls cuDNN attention (refused.py:60)"),
        (
            "convolves",
            "1 convolution of cuDNN without an algorithm (first at refused.py:56)",
        ),
    ],
)
def test_build_refuses_what_another_process_could_not_run(
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    command = ["build", f"refused:{name}", "--target", "h200", "--out", str(tmp_path / "o")]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert f"{name}: {reason}" in message
    assert "fix: " in message
    assert not (tmp_path / "o").exists()
