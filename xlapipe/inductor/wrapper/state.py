"""The state while wrapper code is replayed: names, references to memory, messages."""

import ast
import copy
from typing import NoReturn

from xlapipe.inductor.allocations import Replay, Tensor
from xlapipe.inductor.inductor_plan import UnknownAllocation
from xlapipe.inductor.ir.values import check_layout
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.wrapper.bound_values import OPAQUE, Frame, Value, tensors_in
from xlapipe.inductor.wrapper.launches import Launches
from xlapipe.inductor.wrapper.output_code import WrapperCode
from xlapipe.inductor.wrapper.replayed import Known, Replayed
from xlapipe.inductor.wrapper.sizes_and_dtypes import gather

_DEFINED = (
    "fix: the file is damaged or not whole, dump it again; if torch wrote it so, report the line"
)


class WrapperState:
    """One replay of one module.

    Attributes:
      gathered: sizes and dtypes that the module states about its names.
      replayed: what was found so far.
      frames: names of the functions that are followed, the innermost last.
      groups: storages of arguments that share one, by group.
    """

    def __init__(self, code: WrapperCode, known: Known) -> None:
        self.code = code
        self.known = known
        self.gathered = gather(code, known.layouts)
        self.replay = Replay(on_host=code.on_host)
        self.launches = Launches(code, self.replay)
        self.replayed = Replayed(self.replay, launches=self.launches.made)
        self.frames = [Frame()]
        self.groups: dict[int, int] = {}

    @property
    def frame(self) -> Frame:
        """Names of the innermost function."""
        return self.frames[-1]

    def fork(self) -> "WrapperState":
        """A copy, to follow another branch with."""
        shared = (self.code, self.known, self.gathered, OPAQUE)
        return copy.deepcopy(self, {id(part): part for part in shared})

    def hold(self, value: Value) -> None:
        """Adds a reference to each tensor of a value."""
        for tensor in tensors_in(value):
            self.replay.hold(tensor.storage)

    def release(self, value: Value, node: ast.AST) -> None:
        """Drops a reference to each tensor of a value."""
        for tensor in tensors_in(value):
            self.replay.release(tensor.storage, self.number(node))

    def bind(self, name: str, value: Value, node: ast.AST) -> None:
        """Binds a name to a value whose reference it takes over."""
        before = self.frame.bind(name, value)
        if isinstance(value, Tensor):
            self.replay.name_value(name, value)
        self.release(before, node)

    def leave(self, frame: Frame, line: int) -> None:
        """Drops the names of a function that has returned."""
        for value in frame.names.values():
            for tensor in tensors_in(value):
                self.replay.release(tensor.storage, line)
        frame.names.clear()

    def number(self, node: ast.AST) -> int:
        """Number in the file of a statement's line."""
        return self.code.number(node)

    def check(self, layout: Layout, node: ast.AST) -> None:
        """Refuses sizes that no tensor has."""
        check_layout(self.code.text, getattr(node, "lineno", 1) - 1, layout)

    def unknown(
        self, name: str, node: ast.AST, reason: str, result_bytes: int | None = None
    ) -> None:
        """Records a call that allocates bytes which nothing counts."""
        if self.launches.muted:
            return
        self.replayed.unknown.append(
            UnknownAllocation(self.replay.position, name, self.number(node), result_bytes, reason)
        )

    def note(self, text: str) -> None:
        """Records an assumption, once."""
        if text not in self.replayed.notes:
            self.replayed.notes.append(text)

    def fail(self, node: ast.AST, expected: str, found: str) -> NoReturn:
        """Raises a DumpError with the line of a statement."""
        self.code.text.fail(getattr(node, "lineno", 1) - 1, expected, found, _DEFINED)
