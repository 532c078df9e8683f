"""What the command line asks for, checked and turned into settings and prompts. No jax."""

import argparse
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.qwen3.checkpoint.chat import messages_of, render_chat
from models.qwen3.checkpoint.config_json import GenerationConfig
from models.qwen3.checkpoint.tokenizer import TextTokenizer, read_tokenizer
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.sampling_settings import Settings
from xlapipe.errors import XlapipeError

DEFAULT_NEW_TOKENS = 64
DEFAULT_PROMPT = "The compiler"
_DRAWING = ("temperature", "top_k", "top_p", "seed")
_BUILDING = ("target", "gemm", "batch", "prompt_length", "autotune_lock")
_RUNNING = ("prompt", "prompt_ids", "system", "executables", "memory_limit")


def refuse_mixed(options: argparse.Namespace) -> None:
    """Raises XlapipeError for options that do not go together."""
    building = options.build_executables is not None
    for name in _RUNNING if building else _BUILDING:
        if getattr(options, name) is not None:
            goes = "does not go" if building else "goes"
            raise XlapipeError(f"{_flag(name)} {goes} with --build-executables")
    if not options.hopper_kernels and options.executables is not None:
        raise XlapipeError(
            "--executables have the kernels that they were built with: "
            "leave --no-hopper-kernels out"
        )
    drawing = [name for name in _DRAWING if getattr(options, name) is not None]
    if options.greedy and drawing:
        raise XlapipeError(f"--greedy looks at no {_flag(drawing[0])}; give one of them")
    if options.prompt and options.prompt_ids:
        raise XlapipeError("--prompt is text and --prompt-ids are its tokens; give one of them")
    if options.chat and options.prompt_ids:
        raise XlapipeError("--chat writes text; it takes --prompt, not --prompt-ids")
    for name in ("system", "no_thinking"):
        if getattr(options, name) and not options.chat:
            raise XlapipeError(f"{_flag(name)} goes with --chat")


def settings_of(options: argparse.Namespace, defaults: GenerationConfig) -> Settings:
    """Greedy unless an option of drawing is given; the others are then the checkpoint's.

    Raises:
      XlapipeError: a value outside its range.
    """
    if all(getattr(options, name) is None for name in _DRAWING):
        return Settings()
    given = {
        name: getattr(defaults, name, 0)
        if getattr(options, name) is None
        else getattr(options, name)
        for name in _DRAWING
    }
    return Settings(greedy=False, **(given | {"top_k": given["top_k"] or None}))


@dataclass(frozen=True)
class Prompts:
    """Token ids of each prompt; the tokenizer is None where there is none and none is needed."""

    token_ids: list[list[int]]
    tokenizer: TextTokenizer | None


def prompts_of(options: argparse.Namespace, checkpoint: Path, config: Qwen3Config) -> Prompts:
    """The prompts as token ids.

    Raises:
      XlapipeError: ids that are none; text without a tokenizer or, for --chat, a template.
    """
    if options.prompt_ids:
        tokenizer = None
        with suppress(XlapipeError):  # text is then left out
            tokenizer = read_tokenizer(checkpoint, config.vocab_size)
        return Prompts([_ids(text) for text in options.prompt_ids], tokenizer)
    if not options.prompt and options.checkpoint is not None:
        raise XlapipeError("no prompt; give one with --prompt or --prompt-ids")
    texts = options.prompt or [DEFAULT_PROMPT]
    tokenizer = read_tokenizer(checkpoint, config.vocab_size)
    if not options.chat:
        return Prompts([tokenizer.encode(text) for text in texts], tokenizer)
    chats = [
        render_chat(checkpoint, messages_of(text, options.system), thinking=not options.no_thinking)
        for text in texts
    ]
    return Prompts([tokenizer.encode(chat, special=False) for chat in chats], tokenizer)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise XlapipeError(f"--prompt-ids {text!r:.60}: expected numbers, as in 1,2,3") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
