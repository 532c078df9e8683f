"""Checks the command's options, and makes settings and prompts from them. Imports no jax."""

import argparse
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.qwen3.checkpoint.chat_template import messages_of, render_chat
from models.qwen3.checkpoint.config_files import GenerationConfig
from models.qwen3.checkpoint.tokenizer import TextTokenizer, read_tokenizer
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.sampling_settings import SamplingSettings
from xlapipe import XlapipeError

DEFAULT_NEW_TOKENS = 64
DEFAULT_PROMPT = "The compiler"
_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_BUILD_ONLY = ("target", "gemm", "batch", "prompt_length", "autotune_lock")
_RUN_ONLY = ("prompt", "prompt_ids", "system", "executables", "memory_limit")


def check_combination(options: argparse.Namespace) -> None:
    """Raises XlapipeError for options that cannot be combined."""
    if options.build_executables is not None:
        for name in _RUN_ONLY:
            if getattr(options, name) is not None:
                raise XlapipeError(f"{_flag(name)} cannot be used with --build-executables")
    else:
        for name in _BUILD_ONLY:
            if getattr(options, name) is not None:
                raise XlapipeError(f"{_flag(name)} can only be used with --build-executables")
    chosen = {"--no-hopper-kernels": not options.hopper_kernels}
    chosen |= {"--persistent-kernel": options.persistent_kernel is True}
    chosen |= {"--no-persistent-kernel": options.persistent_kernel is False}
    for flag, is_given in chosen.items():
        if is_given and options.executables is not None:
            raise XlapipeError(
                f"{flag} cannot be used with --executables, whose kernels are already compiled; "
                "fix: pass it to --build-executables"
            )
    sampling = [name for name in _SAMPLING if getattr(options, name) is not None]
    if options.greedy and sampling:
        raise XlapipeError(f"--greedy ignores {_flag(sampling[0])}; pass only one")
    if options.prompt and options.prompt_ids:
        raise XlapipeError("--prompt (text) and --prompt-ids (token ids) exclude each other")
    if options.chat and options.prompt_ids:
        raise XlapipeError("--chat needs text: pass --prompt instead of --prompt-ids")
    for name in ("system", "no_thinking"):
        if getattr(options, name) and not options.chat:
            raise XlapipeError(f"{_flag(name)} can only be used with --chat")


def settings_of(options: argparse.Namespace, defaults: GenerationConfig) -> SamplingSettings:
    """Greedy unless a sampling option is given; the other ones then default to the checkpoint's.

    Raises:
      XlapipeError: a value is out of range.
    """
    if all(getattr(options, name) is None for name in _SAMPLING):
        return SamplingSettings()
    values = {
        name: getattr(defaults, name, 0)
        if getattr(options, name) is None
        else getattr(options, name)
        for name in _SAMPLING
    }
    return SamplingSettings(greedy=False, **(values | {"top_k": values["top_k"] or None}))


@dataclass(frozen=True)
class Prompts:
    """The prompts of a run.

    Attributes:
      token_ids: of each prompt.
      tokenizer: None if the prompts are token ids and the checkpoint has no valid tokenizer.
    """

    token_ids: list[list[int]]
    tokenizer: TextTokenizer | None


def prompts_of(options: argparse.Namespace, checkpoint: Path, config: Qwen3Config) -> Prompts:
    """The prompts as token ids.

    Raises:
      XlapipeError: invalid token ids; text without a tokenizer; --chat without a template.
    """
    if options.prompt_ids:
        tokenizer = None
        with suppress(XlapipeError):  # the output then has no text
            tokenizer = read_tokenizer(checkpoint, config.vocab_size)
        return Prompts([_token_ids(text) for text in options.prompt_ids], tokenizer)
    if not options.prompt and options.checkpoint is not None:
        raise XlapipeError("no prompt; fix: pass one with --prompt or --prompt-ids")
    texts = options.prompt or [DEFAULT_PROMPT]
    tokenizer = read_tokenizer(checkpoint, config.vocab_size)
    if not options.chat:
        return Prompts([tokenizer.encode(text) for text in texts], tokenizer)
    chats = [
        render_chat(checkpoint, messages_of(text, options.system), thinking=not options.no_thinking)
        for text in texts
    ]
    return Prompts([tokenizer.encode(chat, special=False) for chat in chats], tokenizer)


def _token_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise XlapipeError(f"--prompt-ids {text!r:.60}: expected integers, e.g. 1,2,3") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
