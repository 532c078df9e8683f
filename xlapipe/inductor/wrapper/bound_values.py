"""What a name of wrapper code may be bound to while it is replayed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from xlapipe.inductor.allocations import Tensor


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that holds no memory: a stream, a string, a number that is not known."""


@dataclass(slots=True)
class Box:
    """A list, which `clear()` empties for every name that is bound to it."""

    items: list["Value"] = field(default_factory=list)


Value = Tensor | int | Opaque | Box | tuple["Value", ...] | None
OPAQUE = Opaque()


def tensors_in(value: Value) -> Iterator[Tensor]:
    """Tensors that a value holds."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, Box)):
        for item in value.items if isinstance(value, Box) else value:
            yield from tensors_in(item)


def items_of(value: Value) -> list[Value]:
    """The items of a tuple or a list; none of another value."""
    if isinstance(value, Box):
        return value.items
    return list(value) if isinstance(value, tuple) else []


class Frame:
    """The names of one function while it is followed."""

    def __init__(self) -> None:
        self.names: dict[str, Value] = {}
        self.symbols: dict[str, int] = {}

    def bind(self, name: str, value: Value) -> Value:
        """Binds a name; returns what it was bound to before."""
        before = self.names.get(name)
        self.names[name] = value
        if isinstance(value, int):
            self.symbols[name] = value
        else:
            self.symbols.pop(name, None)
        return before
