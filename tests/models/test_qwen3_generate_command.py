"""`python -m models.qwen3.generate` on a small checkpoint of random weights."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from models.qwen3.checkpoint.random_checkpoint import small_tokenizer, write_random_checkpoint
from models.qwen3.checkpoint.tokenizer import read_tokenizer
from models.qwen3.config import Qwen3Config
from models.qwen3.generate import main
from models.qwen3.generation import compile_generation as compiling

pytestmark = [pytest.mark.jax, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Qwen3Config(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        dtype="float32",
    )
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small", config)


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """Steps for the same model and sizes are compiled once for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "compile_generation", cache(compiling.compile_generation))
        yield


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def json_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    data: dict[str, Any] = json.loads(captured.out)
    return data


def test_json_output_has_every_field(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["Hello", "The plan"]
    prompts = [part for text in texts for part in ("--prompt", text)]
    common = ["--checkpoint", str(checkpoint), "--max-new-tokens", "6"]
    result = json_output(capsys, *common, *prompts)
    assert len(result["outputs"]) == 2
    for output in result["outputs"]:
        assert 1 <= len(output["token_ids"]) <= 6
        assert all(0 <= token_id < 400 for token_id in output["prompt_ids"] + output["token_ids"])
        assert isinstance(output["text"], str)
        assert output["finish_reason"] in ("length", "eos")
    for name in ("tokens_per_second", "prefill_seconds", "first_token_seconds", "load_seconds"):
        assert result[name] > 0
    assert result["first_token_seconds"] > result["load_seconds"] + result["prefill_seconds"]
    assert (result["device"], result["dtype"], result["cache_length"]) == ("cpu", "float32", 128)
    assert result["planned_bytes"] > 0
    assert result["random_weights"] is False

    ids = [",".join(map(str, output["prompt_ids"])) for output in result["outputs"]]
    by_ids = json_output(capsys, *common, "--prompt-ids", ids[0], "--prompt-ids", ids[1])
    assert by_ids["outputs"] == result["outputs"]


def test_streamed_text_equals_the_whole_text(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--checkpoint", str(checkpoint), "--prompt", "Hello", "--max-new-tokens", "9"]
    text = json_output(capsys, *common)["outputs"][0]["text"]
    assert main(common) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{text}\n"
    assert "9 tokens; first tokens after" in captured.err and "tokens/s" in captured.err


def test_outputs_of_several_prompts_are_numbered(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a tokenizer, the outputs are token ids."""
    (copy / "tokenizer.json").unlink()
    common = ["--checkpoint", str(copy), "--max-new-tokens", "6"]
    common += ["--prompt-ids", "1,2,3", "--prompt-ids", " 7"]
    outputs = json_output(capsys, *common)["outputs"]
    assert [output["text"] for output in outputs] == [None, None]
    assert main(common) == 0
    lines = capsys.readouterr().out.splitlines()
    for number, (line, output) in enumerate(zip(lines, outputs, strict=True), 1):
        assert line == f"[{number}] {' '.join(map(str, output['token_ids']))}"


def test_sampling_options(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--checkpoint", str(checkpoint), "--prompt", "Hello", "--max-new-tokens", "12"]

    def ids(*options: str) -> list[int]:
        token_ids: list[int] = json_output(capsys, *common, *options)["outputs"][0]["token_ids"]
        return token_ids

    greedy = ids("--greedy")
    sampled = ids("--seed", "4")
    assert sampled == ids("--seed", "4") != ids("--seed", "5")
    # The other settings come from generation_config.json.
    assert sampled == ids("--seed=4", "--temperature=0.6", "--top-k=20", "--top-p=0.95")
    assert ids("--top-k", "1") == greedy != sampled


def test_chat_prompts_are_rendered_by_the_template(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "chat_template.jinja").write_text(
        "{%- for message in messages %}\n  {{- '<' + message.role + '>' + message.content }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n  {{- '<assistant>' }}\n"
        "  {%- if enable_thinking is false %}\n    {{- '<off>' }}\n  {%- endif %}\n{%- endif %}"
    )
    common = ["--checkpoint", str(copy), "--max-new-tokens", "6"]
    chat = ["--chat", "--system", "Be brief", "--no-thinking", "--prompt", "Hello"]
    prompt_ids = json_output(capsys, *common, *chat)["outputs"][0]["prompt_ids"]
    plain = ["--prompt", "<system>Be brief<user>Hello<assistant><off>"]
    assert prompt_ids == json_output(capsys, *common, *plain)["outputs"][0]["prompt_ids"]
    (copy / "chat_template.jinja").unlink()
    (from_config,) = json_output(capsys, *common, "--chat", "--prompt", "Hello")["outputs"]
    written = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    (expected,) = json_output(capsys, *common, "--prompt", written)["outputs"]
    assert from_config == expected


def test_without_a_checkpoint_the_weights_are_random(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--max-new-tokens", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["random_weights"] is True
    assert "random weights" in captured.err


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    errors = [line for line in captured.err.splitlines() if line.startswith("generate: error: ")]
    assert len(errors) == 1
    return errors[0]


PROMPT = ["--prompt-ids", "1,2,3"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no prompt"),
        (["--prompt", ""], "prompt 1 has no tokens"),
        (["--prompt-ids", ""], "prompt 1 has no tokens"),
        (["--prompt-ids", "1,x"], "--prompt-ids '1,x': expected integers"),
        (["--prompt-ids", "1,400"], "token id 400 at position 1 is outside the model's vocabulary"),
        (["--prompt-ids", "-1"], "token id -1"),
        ([*PROMPT, "--prompt", "Hello"], "--prompt (text) and --prompt-ids (token ids) exclude"),
        ([*PROMPT, "--chat"], "--chat needs text"),
        ([*PROMPT, "--system", "x"], "--system can only be used with --chat"),
        ([*PROMPT, "--no-thinking"], "--no-thinking can only be used with --chat"),
        ([*PROMPT, "--max-new-tokens", "0"], "max-new-tokens 0: expected 1 or more"),
        ([*PROMPT, "--cache-length", "0"], "cache-length 0: expected 1 or more"),
        ([*PROMPT, "--cache-length", "2"], "prompt 1 has 3 tokens, but the cache has 2 slots"),
        ([*PROMPT, "--temperature", "0"], "temperature 0: expected a number above 0"),
        ([*PROMPT, "--temperature", "nan"], "temperature nan"),
        ([*PROMPT, "--top-k", "-1"], "top-k -1"),
        ([*PROMPT, "--top-p", "0"], "top-p 0: expected a number in (0, 1]"),
        ([*PROMPT, "--seed", "-3"], "seed -3"),
        ([*PROMPT, "--greedy", "--top-k", "3"], "--greedy ignores --top-k; pass only one"),
        ([*PROMPT, "--batch", "2"], "--batch can only be used with --build-executables"),
        ([*PROMPT, "--target", "h200"], "--target can only be used with --build-executables"),
        ([*PROMPT, "--executables", "nowhere"], "executables.json: cannot be read"),
        ([*PROMPT, "--build-executables", "x"], "--prompt-ids cannot be used with"),
        (["--build-executables", "x", "--batch", "0"], "--batch 0: expected 1 or more"),
        (
            ["--build-executables", "x", "--prompt-length", "9", "--cache-length", "8"],
            "--prompt-length 9 is larger than --cache-length 8",
        ),
        (["--build-executables", "x", "--target", "h20"], "unknown target 'h20'"),
    ],
)
def test_bad_arguments_are_errors(
    arguments: list[str],
    expected: str,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in error_of(["--checkpoint", str(checkpoint), *arguments], capsys)
    assert list(tmp_path.iterdir()) == []


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--checkpoint", "nowhere", "--prompt", "x", "--json"]) == 2
    assert "nowhere" in json.loads(capsys.readouterr().out)["error"]


def test_building_needs_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs --checkpoint" in error_of(["--build-executables", "x"], capsys)


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def damaged_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-100])


def larger_tokenizer(folder: Path) -> None:
    tokenizer = small_tokenizer(500)
    tokenizer.add_tokens([f"<{number}>" for number in range(100)])
    tokenizer.save(str(folder / "tokenizer.json"))


def without_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": None}))


def template(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(text)

    return write


@pytest.mark.parametrize(
    ("damage", "arguments", "expected"),
    [
        (without_tokenizer, [], "tokenizer.json: no such file; --prompt needs a tokenizer"),
        (damaged_tokenizer, [], "tokenizer.json: not a tokenizer"),
        (larger_tokenizer, [], "at most 400 tokens, the model's vocabulary, found 487"),
        (without_template, ["--chat"], "no chat template"),
        (template("{{ raise_exception('no such role') }}"), ["--chat"], "no such role"),
        (template("{% if %}"), ["--chat"], "chat_template.jinja: the chat template cannot"),
        (template("{{ messages.append(1) }}"), ["--chat"], "the chat template cannot"),
        (template("{{ ''.__class__.__mro__[1].__subclasses__() }}"), ["--chat"], "unsafe"),
    ],
)
def test_a_damaged_tokenizer_or_template_is_an_error(
    damage: Callable[[Path], None],
    arguments: list[str],
    expected: str,
    copy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(copy)
    common = ["--checkpoint", str(copy), "--prompt", "Hello", *arguments]
    assert expected in error_of(common, capsys)


def test_a_model_that_does_not_fit_is_an_error_before_weights_are_read(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan shows it: the weights' file does not exist."""
    (copy / "model.safetensors").unlink()
    common = ["--checkpoint", str(copy), *PROMPT, "--cache-length", "64"]
    error = error_of([*common, "--memory-limit", "1000"], capsys)
    # Q, K and V together [64, 32], the output [32, 32], gate, up and down [48, 32] each, two norms
    # of 32 and two of 16; the table [400, 32], the final norm of 32.
    weights = 4 * (64 * 32 + 32 * 32 + 3 * 48 * 32 + 2 * 32 + 2 * 16 + 400 * 32 + 32)
    assert f"weights {weights:,} B in float32" in error
    assert f"cache {2 * 64 * 16 * 4:,} B for 1 × 64 slots" in error
    assert "available 1,000 B" in error


def test_help_does_not_import_jax() -> None:
    code = (
        "import sys; from models.qwen3.generate import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('jax', 'numpy', 'flax', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "greedy unless" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_incomplete_characters_are_not_streamed(checkpoint: Path) -> None:
    tokenizer = read_tokenizer(checkpoint, 400)
    text = "a ü 語 🙂 b"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    pieces = [stream.add([token_id]) for token_id in ids]
    assert "" in pieces and all("�" not in piece for piece in pieces)
    assert "".join(pieces) + stream.end() == text
    cut = tokenizer.stream()
    shown = "".join(cut.add([token_id]) for token_id in tokenizer.encode("🙂")[:-1])
    assert (shown, cut.end()) == ("", "�")
