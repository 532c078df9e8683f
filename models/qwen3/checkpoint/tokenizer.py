"""Text to token ids and back, by a checkpoint's tokenizer.json. Imports no jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from xlapipe.errors import XlapipeError

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer whose ids are all of the model's vocabulary."""

    tokenizer: Tokenizer

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`.

        Args:
          special: with the special tokens that the tokenizer puts around a text; a chat template
            has written its own.

        Raises:
          XlapipeError: text that is no Unicode, as from an argument of other bytes.
        """
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        except (UnicodeEncodeError, TypeError):
            raise XlapipeError(f"prompt {text!r:.60}: not valid UTF-8") from None
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text without special tokens."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def stream(self) -> "TextStream":
        return TextStream(self)


class TextStream:
    """Text as its tokens come; a character that lies in several tokens is held until it is whole.

    What `add` and `end` return adds up to `decode` of all the tokens.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._said = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        self._token_ids.extend(token_ids)
        pieces = (self._stream.step(self._tokenizer.tokenizer, each) for each in token_ids)
        text = "".join(piece for piece in pieces if piece is not None)
        self._said += len(text)
        return text

    def end(self) -> str:
        """What is left: bytes that never became a character, as U+FFFD."""
        return self._tokenizer.decode(self._token_ids)[self._said :]


def read_tokenizer(folder: Path, vocab_size: int) -> TextTokenizer:
    """The tokenizer of a checkpoint.

    Raises:
      XlapipeError: there is none, it cannot be read, or it has more tokens than the model.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise XlapipeError(
            f"{path}: no such file; text takes a tokenizer, --prompt-ids takes token ids"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exceptions
        raise XlapipeError(f"{path}: not a tokenizer of the tokenizers library: {error}") from None
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > vocab_size:
        raise XlapipeError(
            f"{path}: has {size:,} tokens, the model's vocabulary {vocab_size:,}; is it the "
            "tokenizer of another checkpoint?"
        )
    return TextTokenizer(tokenizer)
