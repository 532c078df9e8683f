"""A checkpoint's chat template, rendered as transformers does. Imports no jax.

Source: `render_jinja_template` and `_compile_jinja_template` in transformers'
utils/chat_template_utils.py: a sandboxed environment in which nothing can be changed,
trim_blocks and lstrip_blocks, loop controls, and the functions raise_exception and strftime_now.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from xlapipe.errors import XlapipeError

TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"

Message = Mapping[str, str]


def messages_of(prompt: str, system: str | None) -> list[Message]:
    """What the user says, behind what the system does."""
    said: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*said, {"role": "user", "content": prompt}]


def render_chat(folder: Path, messages: Sequence[Message], *, thinking: bool) -> str:
    """The text of a conversation, up to where the assistant is to answer.

    Args:
      thinking: `enable_thinking` of Qwen3's templates.

    Raises:
      XlapipeError: no template, or one that cannot be rendered.
    """
    template, special, where = _template(folder)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(
            **special,
            messages=list(messages),
            tools=None,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise XlapipeError(f"{where}: the chat template cannot be rendered: {error}") from None


def _template(folder: Path) -> tuple[str, dict[str, str], Path]:
    """The template, the special tokens that it may name, and the file that it is from."""
    config = _read_config(folder / TOKENIZER_CONFIG)
    special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
    path = folder / TEMPLATE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), special, path
        except (OSError, UnicodeDecodeError) as error:
            raise XlapipeError(f"{path}: cannot be read: {error}") from None
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise XlapipeError(
            f"{folder}: no chat template, neither {TEMPLATE} nor in {TOKENIZER_CONFIG}; leave out "
            "--chat to continue the prompt as it is"
        )
    return found, special, folder / TOKENIZER_CONFIG


def _read_config(path: Path) -> dict[str, Any]:
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
    """A special token, which may be an object with its text under `content`."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _to_json(value: object, indent: int | None = None) -> str:
    # jinja2's own escapes characters of HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
