"""Converts text to token ids and back with a checkpoint's tokenizer.json. Imports no jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe import XlapipeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer whose ids are all in the model's vocabulary."""

    tokenizer: "Tokenizer"

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The token ids of `text`.

        Raises:
          XlapipeError: the text is not valid Unicode, e.g. from an argument that is not UTF-8.
        """
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        except (UnicodeEncodeError, TypeError):
            raise XlapipeError(f"prompt {text!r:.60}: not valid UTF-8") from None
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, without special tokens."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def stream(self) -> "TextStream":
        """A new stream that decodes tokens incrementally."""
        return TextStream(self)


class TextStream:
    """Decodes tokens incrementally; a character that spans several tokens comes with its last one.

    The concatenated results of `add` and `end` equal `decode` of all the tokens.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._returned_characters = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        self._token_ids.extend(token_ids)
        tokenizer = self._tokenizer.tokenizer
        pieces = (self._stream.step(tokenizer, token_id) for token_id in token_ids)
        text = "".join(piece for piece in pieces if piece is not None)
        self._returned_characters += len(text)
        return text

    def end(self) -> str:
        """The rest of the text: bytes that do not form a character, as U+FFFD."""
        return self._tokenizer.decode(self._token_ids)[self._returned_characters :]


def read_tokenizer(folder: Path, vocab_size: int) -> TextTokenizer:
    """The tokenizer of a checkpoint.

    Raises:
      XlapipeError: it is missing, cannot be read, or has more tokens than the model.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise XlapipeError(
            f"{path}: no such file; --prompt needs a tokenizer; fix: pass token ids by --prompt-ids"
        )
    # Imported here: token ids need no tokenizer.
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exceptions
        raise XlapipeError(f"{path}: not a tokenizer of the tokenizers library: {error}") from None
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > vocab_size:
        raise XlapipeError(
            f"{path}: expected at most {vocab_size:,} tokens, the model's vocabulary, found "
            f"{size:,}; the tokenizer may be from another checkpoint"
        )
    return TextTokenizer(tokenizer)
