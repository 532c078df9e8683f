"""The instructions of a module that XLA tunes, in the canonical text that its key is made of."""

import json
import re
from collections.abc import Iterator
from typing import Any

# As jaxlib prints a module with the options of a fingerprint: instructions are indented by two
# spaces, bodies of fusions by more, and names are numbers within their computation.
_NAMED = re.compile(r"^(?:ROOT )?tmp_\d+ = ")
_OPERAND = re.compile(r" tmp_\d+(?=[,)])")
_FUSION = re.compile(r" fusion\([^)]*\), kind=(kLoop|kInput|kCustom)")
_CALL = re.compile(r' custom-call\(.*custom_call_target="(__cublas|__cudnn\$conv)')
_GEMM_FUSION = '"kind":"__triton_gemm"'
_CONFIG = re.compile(r"backend_config=(?=\{\")")


def tuned_instructions(module_text: str) -> tuple[str, ...]:
    """The canonical text of each instruction that XLA takes from autotune results, once each."""
    texts = (_sorted_config(text) for text in instruction_texts(module_text))
    return tuple(dict.fromkeys(text for text in texts if _is_tuned(text)))


def instruction_texts(module_text: str) -> Iterator[str]:
    """The text of each instruction outside of fusions, with the body of a fusion."""
    lines: list[str] = []
    for line in module_text.splitlines():
        inner = line.startswith("  ")
        starts = inner and line[2:3] not in (" ", "{", "}")
        if lines and (starts or not inner):
            yield "\n".join(lines)
            lines = []
        if starts:
            lines = [_OPERAND.sub("", _NAMED.sub("", line[2:]))]
        elif lines:
            lines.append(line[2:])
    if lines:
        yield "\n".join(lines)


def is_generic(text: str) -> bool:
    """Whether a tuned instruction is a fusion without a product, such as a loop or a reduction."""
    fusion = _FUSION.search(text.split("\n", 1)[0])
    return fusion is not None and fusion[1] != "kCustom"


def _is_tuned(text: str) -> bool:
    head = text.split("\n", 1)[0]
    fusion = _FUSION.search(head)
    if fusion is not None:
        return fusion[1] != "kCustom" or _GEMM_FUSION in text
    return _CALL.search(head) is not None


def _sorted_config(text: str) -> str:
    """The text with the keys of each backend config in order, and its numbers as they were."""
    decoder = json.JSONDecoder(parse_float=_Number, parse_int=_Number)
    parts, end = [], 0
    for match in _CONFIG.finditer(text):
        if match.end() < end:
            continue
        try:
            config, config_end = decoder.raw_decode(text, match.end())
        except ValueError:
            continue
        parts += [text[end : match.end()], _json(config)]
        end = config_end
    return "".join(parts) + text[end:]


class _Number(str):
    """A number as it is written."""


def _json(value: Any) -> str:
    if isinstance(value, dict):
        items = (f"{json.dumps(key)}:{_json(item)}" for key, item in sorted(value.items()))
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return str(value) if isinstance(value, _Number) else json.dumps(value)
