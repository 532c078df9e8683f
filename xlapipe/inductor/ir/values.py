"""Values in an IR dump: lists of dependencies and of users, layouts, names."""

import re
from collections.abc import Iterator, Mapping

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.expressions import dimensions
from xlapipe.inductor.ir.nodes import OUTPUT, Dependency, User
from xlapipe.inductor.layouts import Layout, contiguous_strides, dtype_name
from xlapipe.inductor.text_lines import TextLines

_DEPENDENCY = re.compile(
    r"MemoryDep\((?:name=)?'(?P<memory>[^']*)', (?:index=)?(?P<index>[^{}]*?), "
    r"\{(?P<ranges>[^{}]*)\}[^()]*\)"
    r"|(?P<kind>StarDep|WeakDep)\((?:name=)?'(?P<name>[^']*)'[^()]*\)"
)
_USER = re.compile(
    r"NodeUser\(node=(?:\w+\((?:name=)?'?(?P<name>\w+)'?\)|OUTPUT), "
    r"can_inplace=(?P<inplace>True|False)(?:, is_weak=(?:True|False))?\)"
)
_SEPARATORS = ", \t\n"
_NAME = re.compile(r"'([^']*)'")
_TENSOR_LAYOUT = re.compile(
    r"(?P<kind>\w*Layout\w*)\((?:device=)?'(?P<device>[^']*)', (?:dtype=)?torch\.(?P<dtype>\w+), "
    r"size=[\[(](?P<size>[^\[\]]*?),?[\])], stride=[\[(](?P<stride>[^\[\]]*?),?[\])].*\)"
)
_ABSTRACT_LAYOUT = re.compile(r"<?(?:[\w.]+\.)?(?P<kind>\w*Layout\w*)\b.*")
# `NoneLayout(device=…, size=[0], stride=[0])` is a layout without a tensor.
_NO_TENSOR = "NoneLayout"
_MUTATION = "MutationLayout"
_UNKNOWN_LAYOUT = "unknown layout"
_NO_SYMBOLS: Mapping[str, int] = {}
_MOST_DIMENSIONS = 64


class IrValues:
    """Reads the values of one dump; equal layouts are one object."""

    def __init__(self, text: TextLines) -> None:
        self._text = text
        self._layouts: dict[str, tuple[str, Layout | None]] = {}

    def dependencies(self, text: str, at: int) -> tuple[Dependency, ...]:
        """`[StarDep(name='buf0', mode=None), …]`; `at` is the index of its first line."""
        expected = "a dependency, e.g. StarDep(name='buf0', mode=None)"
        return tuple(
            Dependency(match["kind"], match["name"])
            if match["kind"] is not None
            else Dependency("MemoryDep", match["memory"], match["index"], match["ranges"])
            for match in self._items(_DEPENDENCY, text, at, expected)
        )

    def users(self, text: str, at: int) -> tuple[User, ...]:
        """`[NodeUser(node=SchedulerNode(name='op2'), can_inplace=True, is_weak=False), …]`."""
        expected = "a user, e.g. NodeUser(node=OUTPUT, can_inplace=False, is_weak=False)"
        return tuple(
            User(match["name"] or OUTPUT, match["inplace"] == "True")
            for match in self._items(_USER, text, at, expected)
        )

    def layout(self, text: str, at: int) -> tuple[str, Layout | None]:
        """The layout's class, and the tensor that it describes, if any."""
        if text not in self._layouts:
            self._layouts[text] = self._read_layout(text, at)
        return self._layouts[text]

    def _read_layout(self, text: str, at: int) -> tuple[str, Layout | None]:
        match = _TENSOR_LAYOUT.fullmatch(text)
        if match is None:
            abstract = _ABSTRACT_LAYOUT.fullmatch(text)
            if abstract is None or ("size=" in text and abstract["kind"] != _NO_TENSOR):
                expected = (
                    "a layout, e.g. FixedLayout('cuda:0', torch.float32, size=[8], stride=[1])"
                )
                self._text.leave_out(at, expected, shown(text))
            return (abstract["kind"] if abstract is not None else _UNKNOWN_LAYOUT), None
        shape = dimensions(split_list(match["size"]), _NO_SYMBOLS)
        strides = dimensions(split_list(match["stride"]), _NO_SYMBOLS)
        if match["kind"].startswith(_MUTATION) and len(shape) != len(strides):
            # It is in the memory of the buffer that is mutated, whose strides torch does not print.
            strides = contiguous_strides(shape)
        layout = Layout(dtype_name(match["dtype"]), shape, strides, match["device"])
        problem = problem_of(layout)
        if problem is not None:
            self._text.leave_out(at, *problem)
            return match["kind"], None
        return match["kind"], layout

    def _items(
        self, pattern: re.Pattern[str], text: str, at: int, expected: str
    ) -> Iterator[re.Match[str]]:
        """The items of a list or a set, which nothing but commas separates."""
        if text in ("set()", "OrderedSet()"):
            return
        inner = text.removeprefix("OrderedSet(").removesuffix(")") if text[:1] == "O" else text
        if inner[:1] + inner[-1:] not in ("[]", "{}"):
            self._text.fail(at, f"a list of {expected}", shown(text))
        rest = inner[1:-1].lstrip(_SEPARATORS)
        while rest:
            match = pattern.match(rest)
            if match is None:
                self._text.fail(at, expected, shown(rest))
            yield match
            rest = rest[match.end() :].lstrip(_SEPARATORS)


def names(text: str, at: int) -> tuple[str, ...]:
    """Names of `['buf2', 'buf3']`; `at` is the index of its first line."""
    return tuple(_NAME.findall(text))


def problem_of(layout: Layout) -> tuple[str, str] | None:
    """What is expected and found if no tensor has the layout; None for a tensor's."""
    if len(layout.shape) != len(layout.strides):
        return "one stride for each size", str(layout)
    if len(layout.shape) > _MOST_DIMENSIONS:
        return f"at most {_MOST_DIMENSIONS} dimensions", str(len(layout.shape))
    numbers = [size for size in (*layout.shape, *layout.strides) if isinstance(size, int)]
    if any(number < 0 for number in numbers):
        return "sizes and strides not below 0", str(layout)
    if max(layout.storage_bytes or 0, layout.element_bytes or 0) >= 2**63:
        return "a tensor of less than 2**63 bytes", str(layout)
    return None


def split_list(text: str) -> list[str]:
    """Parts of a list at its outer commas.

    >>> split_list("s0, Max(1, s1), 4")
    ['s0', 'Max(1, s1)', '4']
    """
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]
