"""Parse protocol buffers in text form without their schema, as far as target configs need it."""

import re
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = "str | int | float | bool | Message"
# For a repeated field only the last value is kept.
Message: TypeAlias = dict[str, Value]

# A GpuTargetConfigProto with autotune results is at most seven deep.
_MAX_DEPTH = 64
_TOKEN = re.compile(
    r"""(?P<space>[\s]+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<scalar>-?[A-Za-z0-9_.][A-Za-z0-9_.+\-]*)
      | (?P<mark>[{}:,;\[\]])""",
    re.VERBOSE,
)


class TextProtoError(ValueError):
    """Text that is not a protocol buffer in text form; the message states the line."""


def parse(text: str) -> Message:
    """The fields of a message; nested messages are dicts.

    Raises:
      TextProtoError: the text does not parse, or is nested too deeply.
    """
    return _message(_Tokens(text), "")


def _message(tokens: "_Tokens", closing: str, depth: int = 0) -> Message:
    message: Message = {}
    while tokens.text != closing:
        if tokens.kind == "end":
            raise tokens.error(f"the text ends before `{closing}`")
        name = tokens.take("scalar", "a field name")
        colon = tokens.skip(":")
        if tokens.text == "{":
            if depth + 1 == _MAX_DEPTH:
                raise tokens.error(f"messages nested more than {_MAX_DEPTH} deep")
            tokens.advance()
            message[name] = _message(tokens, "}", depth + 1)
            tokens.advance()
        elif colon:
            message[name] = tokens.list() if tokens.text == "[" else tokens.value()
        else:
            raise tokens.error(f"expected `:` or `{{` after {name[:40]!r}")
        tokens.skip(",", ";")
    return message


class _Tokens:
    """A tokenizer with the current token in `kind` and `text`."""

    def __init__(self, text: str) -> None:
        self._source = text
        self._position = 0
        self._tokens = self._scan()
        self.kind = ""
        self.text = ""
        self.advance()

    def _scan(self) -> Iterator[tuple[str, str]]:
        while self._position < len(self._source):
            match = _TOKEN.match(self._source, self._position)
            if match is None:
                character = self._source[self._position]
                raise self.error(f"unexpected character {character!r}")
            if match.lastgroup != "space":
                yield match.lastgroup or "", match.group()
            self._position = match.end()

    def advance(self) -> None:
        self.kind, self.text = next(self._tokens, ("end", ""))

    def error(self, message: str) -> TextProtoError:
        line = self._source.count("\n", 0, self._position) + 1
        return TextProtoError(f"line {line}: {message}")

    def take(self, kind: str, what: str) -> str:
        if self.kind != kind:
            token = repr(self.text[:40]) if self.kind != "end" else "the end of the text"
            raise self.error(f"expected {what}, found {token}")
        text = self.text
        self.advance()
        return text

    def skip(self, *marks: str) -> bool:
        if self.text in marks:
            self.advance()
            return True
        return False

    def value(self) -> Value:
        if self.kind != "string":
            return _scalar(self.take("scalar", "a value"))
        parts = []
        while self.kind == "string":  # adjacent strings are concatenated
            parts.append(self.text[1:-1])  # with its escapes: only names and numbers are read
            self.advance()
        return "".join(parts)

    def list(self) -> Value:
        """The last value of a `[...]` of scalars."""
        self.advance()
        last: Value = ""
        while not self.skip("]"):
            last = self.value()
            if not self.skip(",") and self.text != "]":
                raise self.error("expected `,` or `]` in a list")
        return last


def _scalar(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
