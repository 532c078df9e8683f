"""Terminal output of a generation: text as it is generated."""

import sys
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from models.qwen3.cli.options import Prompts

if TYPE_CHECKING:
    from models.qwen3.generation.generator import Generated


@runtime_checkable
class TextSink(Protocol):
    """What generated text is written to: sys.stdout, or a stand-in for it."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...


def note(text: str) -> None:
    """Writes a line to stderr."""
    sys.stderr.write(f"generate: {text}\n")


class TextOutput:
    """Writes the generated text; token ids if there is no tokenizer.

    Text of a single prompt is written as it is generated. For several prompts, writes each
    text with its prompt's number when all have ended.
    """

    def __init__(self, prompts: Prompts, out: TextSink, *, silent: bool) -> None:
        self._tokenizer = prompts.tokenizer
        self._count = len(prompts.token_ids)
        self._out = out
        self._silent = silent
        self._stream = None if self._tokenizer is None else self._tokenizer.stream()

    def add(self, index: int, token_ids: list[int]) -> None:
        """Writes the next tokens of sequence `index`, if it is the only one."""
        if self._silent or self._count > 1:
            return
        if self._stream is None:
            self._write("".join(f"{token_id} " for token_id in token_ids))
        else:
            self._write(self._stream.add(token_ids))

    def finish(self, generated: "Generated") -> None:
        """Writes the remaining text, and the speed on stderr."""
        if self._silent:
            return
        if self._count == 1:
            self._write("\n" if self._stream is None else f"{self._stream.end()}\n")
        else:
            for number, token_ids in enumerate(generated.token_ids, 1):
                self._write(f"[{number}] {self._text(token_ids)}\n")
        count = sum(map(len, generated.token_ids))
        rate = generated.tokens_per_second
        speed = "" if rate is None else f", then {rate:,.1f} tokens/s"
        note(f"{count:,} tokens; first tokens after {generated.prefill_seconds:.3f} s{speed}")

    def _text(self, token_ids: list[int]) -> str:
        if self._tokenizer is None:
            return " ".join(map(str, token_ids))
        return self._tokenizer.decode(token_ids)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
