"""What the nodes of an IR dump read and allocate, and which names are the same memory."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xlapipe.inductor.ir.nodes import OUTPUT, Dependency, IrBuffer, IrNode
from xlapipe.inductor.layouts import Layout

# Arguments of a graph without a backward pass are numbered.
_ARGUMENT = re.compile(r"arg(\d{1,9})_1")
# Layouts of buffers that are in the memory of the buffer that a concatenation makes.
_VIEW_LAYOUTS = ("NonOwningLayout", "AliasedLayout")
_NO_MEMORY = ("NoneLayout", "MultiOutputLayout", "MutationLayout", "MutationLayoutSHOULDREMOVE")


@dataclass(frozen=True)
class IrGraph:
    """The nodes of one graph, in the order in which they run."""

    nodes: tuple[IrNode, ...]

    @cached_property
    def leaves(self) -> tuple[IrNode, ...]:
        """All nodes, with the parts of a fused one instead of it."""
        return tuple(leaf for node in self.nodes for leaf in node.leaves)

    @cached_property
    def buffers(self) -> dict[str, IrBuffer]:
        """Buffers by name, with the layout that another node prints if their own does not."""
        return {
            buffer.name: buffer
            if buffer.layout is not None or buffer.layout_kind is not None
            else replace(buffer, layout=self._printed_layouts.get(buffer.name))
            for leaf in self.leaves
            for buffer in leaf.outputs
        }

    @cached_property
    def _printed_layouts(self) -> dict[str, Layout]:
        """Layouts of `buf0_layout = …`, which a node prints for what it reads and writes."""
        return {name: layout for leaf in self.leaves for name, layout in leaf.layouts.items()}

    @cached_property
    def definer(self) -> dict[str, IrNode]:
        """The leaf that defines a buffer."""
        return {buffer.name: leaf for leaf in self.leaves for buffer in leaf.outputs}

    @cached_property
    def position(self) -> dict[str, int]:
        """Position among `nodes` of a node or of a part, by name."""
        places = {node.name: at for at, node in enumerate(self.nodes)}
        places |= {leaf.name: at for at, node in enumerate(self.nodes) for leaf in node.leaves}
        return places

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """Layouts of buffers and of the arguments whose layout the dump prints."""
        layouts = dict(self._printed_layouts)
        for buffer in self.buffers.values():
            if buffer.layout is not None:
                layouts[buffer.name] = buffer.layout
        return layouts

    def element_bytes(self, name: str) -> int | None:
        """Bytes of the elements of a buffer or an argument; None if unknown."""
        layout = self.layouts.get(name)
        return layout.element_bytes if layout is not None else None

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names that nodes read and no node defines: by their number, else by their first use."""
        names = dict.fromkeys(
            dependency.name
            for leaf in self.leaves
            for dependency in leaf.reads
            if dependency.name not in self.buffers
        )
        numbers = {name: match for name in names if (match := _ARGUMENT.fullmatch(name))}
        if len(numbers) == len(names):
            return tuple(sorted(names, key=lambda name: int(numbers[name][1])))
        return tuple(names)

    @cached_property
    def mutated_arguments(self) -> tuple[str, ...]:
        """Names that nodes write and no node defines."""
        names = dict.fromkeys(
            name
            for buffer in self.buffers.values()
            for name in (*buffer.mutations, *buffer.aliases)
            if name not in self.buffers
        )
        return tuple(names)

    @cached_property
    def _concatenated(self) -> dict[str, str]:
        """Buffers without separate memory, and the buffer of which each is a part."""
        parts: dict[str, str] = {}
        for leaf in self.leaves:
            if "Concat" not in leaf.inner or not leaf.outputs:
                continue
            for dependency in leaf.reads:
                buffer = self.buffers.get(dependency.name)
                if buffer is not None and (buffer.layout_kind or "").startswith(_VIEW_LAYOUTS):
                    parts[buffer.name] = leaf.outputs[0].name
        return parts

    @cached_property
    def _memory(self) -> dict[str, str]:
        """For each buffer, the buffer or argument whose memory it names."""
        memory: dict[str, str] = {}
        for name in self.buffers:
            seen = [name]
            current = name
            while current in self.buffers and current not in memory:
                buffer = self.buffers[current]
                following = (*buffer.mutations, *buffer.aliases)
                after = following[0] if following else self._concatenated.get(current)
                if after is None or after in seen:
                    break
                seen.append(after)
                current = after
            final = memory.get(current, current)
            for seen_name in seen:
                if seen_name in self.buffers:
                    memory[seen_name] = final
        return memory

    def memory_of(self, name: str) -> str:
        """The buffer or argument in whose memory `name` is."""
        return self._memory.get(name, name)

    def owns_memory(self, buffer: IrBuffer) -> bool:
        return self.memory_of(buffer.name) == buffer.name and buffer.layout_kind not in _NO_MEMORY

    def reads_of(self, leaf: IrNode) -> Iterator[Dependency]:
        """What a leaf reads, weak dependencies left out."""
        return (dependency for dependency in leaf.reads if dependency.kind != "WeakDep")

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Buffers and arguments that the caller reads, in the order of their definition."""
        names = dict.fromkeys(
            self.memory_of(buffer.name)
            for buffer in self.buffers.values()
            if any(user.node == OUTPUT for user in buffer.users)
        )
        return tuple(names)

    def inside_one_node(self, buffer: IrBuffer) -> bool:
        """Whether only parts of the fused node that defines it use it: it is never stored."""
        node = self.nodes[self.position[self.definer[buffer.name].name]]
        if not node.parts or not buffer.users:
            return False
        return all(
            user.node != OUTPUT and self.nodes[self.position[user.node]] is node
            for user in buffer.users
            if user.node in self.position or user.node == OUTPUT
        )


def read_names(graph: IrGraph, leaves: Sequence[IrNode]) -> set[str]:
    return {
        graph.memory_of(dependency.name) for leaf in leaves for dependency in graph.reads_of(leaf)
    }
