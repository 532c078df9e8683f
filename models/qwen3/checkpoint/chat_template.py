"""Renders a checkpoint's chat template as transformers does. Imports no jax.

Follows `render_jinja_template` and `_compile_jinja_template` in transformers'
utils/chat_template_utils.py: an immutable sandboxed environment with trim_blocks, lstrip_blocks,
loop controls, and the functions raise_exception and strftime_now.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from xlapipe import XlapipeError

TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"

Message = Mapping[str, str]


def messages_of(prompt: str, system: str | None) -> list[Message]:
    """The system message, if any, and the user's message."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": prompt}]


def render_chat(folder: Path, messages: Sequence[Message], *, thinking: bool) -> str:
    """The text of a conversation, up to and including the start of the assistant's answer.

    Args:
      thinking: the variable `enable_thinking` of Qwen3's templates.

    Raises:
      XlapipeError: the checkpoint has no template, or it cannot be rendered.
    """
    # Imported here: most prompts need no template.
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    template, special_tokens, path = _read_template(folder)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(
            **special_tokens,
            messages=list(messages),
            tools=None,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise XlapipeError(f"{path}: the chat template cannot be rendered: {error}") from None


def _read_template(folder: Path) -> tuple[str, dict[str, str], Path]:
    """The template, the special tokens that it may use, and the file that it was read from."""
    config = _read_tokenizer_config(folder / TOKENIZER_CONFIG)
    names = ("bos_token", "eos_token", "pad_token")
    special_tokens = {name: _content(config.get(name)) for name in names}
    path = folder / TEMPLATE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), special_tokens, path
        except (OSError, UnicodeDecodeError) as error:
            raise XlapipeError(f"{path}: cannot be read: {error}") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates, each with a name
        objects = [item for item in template if isinstance(item, dict)]
        template = {item.get("name"): item.get("template") for item in objects}.get("default")
    if not isinstance(template, str):
        raise XlapipeError(
            f"{folder}: no chat template: expected {TEMPLATE}, or chat_template in "
            f"{TOKENIZER_CONFIG}; fix: leave out --chat to continue the prompt as plain text"
        )
    return template, special_tokens, folder / TOKENIZER_CONFIG


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise XlapipeError(f"{path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise XlapipeError(f"{path}: expected a JSON object, found {type(config).__name__}")
    return config


def _content(token: object) -> str:
    """The text of a special token: the string itself, or `content` of an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _to_json(value: object, indent: int | None = None) -> str:
    # Replaces jinja2's `tojson`, which escapes HTML characters.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
