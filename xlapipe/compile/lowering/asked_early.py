"""What code asks jax about its devices before the step is traced.

While a step is traced, jax answers for the target; see `target_devices`. While the user's module is
imported and its workload is made, jax answers for this machine, whose default backend is the CPU,
and code that branches on the answer takes another branch than beside the target.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, SupportsIndex
from unittest.mock import patch

import jax

from xlapipe.devices.platforms.platform import DeviceFigures

_JAX = os.path.dirname(jax.__file__)
_COUNTS = ("device_count", "local_device_count")
_LISTS = ("devices", "local_devices")


@dataclass
class EarlyQuestions:
    """The questions so far; an answer by question and place, `jax.device_count() at step.py:4`."""

    answers: dict[str, Any] = field(default_factory=dict)

    def differing(self, figures: DeviceFigures, device_count: int) -> tuple[str, ...]:
        """The questions that the target answers otherwise, with the answers that were given."""
        known = (figures.platform, device_count)
        return tuple(
            f"{question} ({answer})"
            for question, answer in self.answers.items()
            if answer not in known
        )

    def note(self, question: str, answer: Any) -> None:
        """Records a question if jax itself does not ask it."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith((_JAX, "<")):
            return
        self.answers[f"{question} at {frame.f_code.co_filename}:{frame.f_lineno}"] = answer


class _Devices(list[Any]):
    """jax's list of devices, which notes when one of them, or their number, is asked for."""

    def __init__(self, devices: list[Any], name: str, questions: EarlyQuestions) -> None:
        super().__init__(devices)
        self._name, self._questions = name, questions

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        item = super().__getitem__(key)
        if not isinstance(key, slice):
            self._questions.note(f"jax.{self._name}()[{int(key)}]", item)
        return item

    def __len__(self) -> int:
        count = super().__len__()
        self._questions.note(f"len(jax.{self._name}())", count)
        return count


@contextmanager
def noting_questions() -> Iterator[EarlyQuestions]:
    """Notes what code asks jax about its default devices meanwhile; the answers stay jax's own."""
    questions = EarlyQuestions()
    originals = {name: getattr(jax, name) for name in ("default_backend", *_COUNTS, *_LISTS)}
    is_over = False

    def asking(name: str) -> Callable[..., Any]:
        original = originals[name]

        def ask(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            if is_over or args or kwargs:  # asked later, or for a platform by name
                return answer
            if name in _LISTS:
                return _Devices(answer, name, questions)
            questions.note(f"jax.{name}()", answer)
            return answer

        return ask

    try:
        with ExitStack() as stack:
            for name in originals:
                stack.enter_context(patch.object(jax, name, asking(name)))
            yield questions
    finally:
        is_over = True
