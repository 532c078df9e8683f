"""A repr of a few hundred characters for objects that hold whole programs."""

from collections.abc import Collection, Iterable
from dataclasses import fields

_LONGEST, _LONGEST_FIELD = 300, 60


def short_repr(record: object) -> str:
    """`Name(field=value, …)` of a dataclass or named tuple; collections by their number of items.

    In the class: `__repr__ = short_repr`.
    """
    shown, left = [], _LONGEST
    for name in _names(record):
        text = f"{name}={_short(getattr(record, name))}"
        if len(text) > left:
            shown.append("…")
            break
        shown.append(text)
        left -= len(text)
    return f"{type(record).__name__}({', '.join(shown)})"


def _names(record: object) -> Iterable[str]:
    if isinstance(record, tuple):
        names: tuple[str, ...] = getattr(record, "_fields", ())
        return names
    return [field.name for field in fields(record)]  # type: ignore[arg-type]  # a dataclass


def _short(value: object) -> str:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        return f"<{len(value)} items>"
    text = repr(value[:_LONGEST_FIELD]) if isinstance(value, (str, bytes)) else repr(value)
    return text if len(text) <= _LONGEST_FIELD else f"{text[: _LONGEST_FIELD - 1]}…"
