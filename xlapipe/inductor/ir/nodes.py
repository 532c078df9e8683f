"""The nodes of Inductor's scheduler, as `ir_pre_fusion.txt` and `ir_post_fusion.txt` list them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.text_lines import TextLines

OUTPUT = "OUTPUT"
"""The user of a buffer that the graph returns."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """What a node reads or writes.

    Attributes:
      kind: `MemoryDep` (elements at an index), `StarDep` (the whole buffer) or `WeakDep` (order
        only, nothing is read).
      index, ranges: index and ranges of a MemoryDep, as printed.
    """

    kind: str
    name: str
    index: str | None = None
    ranges: str | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A reader of a buffer; `node` is `OUTPUT` for the graph's caller."""

    node: str
    can_inplace: bool


@dataclass(frozen=True, slots=True)
class IrBuffer:
    """What a node defines.

    Attributes:
      kind: Inductor's class, e.g. `ComputedBuffer`, `MutationOutput`.
      layout_kind: e.g. `FixedLayout`, `NoneLayout`; None if the dump prints no layout.
      layout: None unless the layout is that of a tensor.
      aliases: buffers whose memory it shares.
      mutations: buffers of which it is the state after the node.
    """

    name: str
    kind: str
    line: int
    layout_kind: str | None
    layout: Layout | None
    aliases: tuple[str, ...] = ()
    mutations: tuple[str, ...] = ()
    users: tuple[User, ...] = ()


@dataclass(frozen=True)
class IrNode:
    """One node of the scheduler, in the order of the dump.

    Attributes:
      kind: class of the scheduler's node, e.g. `SchedulerNode`, `FusedSchedulerNode`.
      inner: class of the operation, e.g. `ComputedBuffer`, `FallbackKernel`; for a fused node the
        classes of its parts.
      kernel: what an extern node calls; None where the dump prints None or nothing.
      layouts: layouts of buffers and arguments that it names.
      body: lines of the loop's body; None for a node without a loop.
    """

    name: str
    kind: str
    inner: str
    line: int
    writes: tuple[Dependency, ...] = ()
    unmet: tuple[Dependency, ...] = ()
    met: tuple[Dependency, ...] = ()
    outputs: tuple[IrBuffer, ...] = ()
    kernel: str | None = None
    device: str | None = None
    parts: tuple["IrNode", ...] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    body: TextLines | None = None

    @property
    def leaves(self) -> tuple["IrNode", ...]:
        """The node itself, or the parts of a fused one."""
        return self.parts or (self,)

    @property
    def reads(self) -> tuple[Dependency, ...]:
        """Everything it depends on, weak dependencies included."""
        return self.unmet + self.met

    @property
    def is_extern(self) -> bool:
        return self.kind.startswith("Extern")

    @property
    def is_nop(self) -> bool:
        return self.kind.startswith("Nop")
