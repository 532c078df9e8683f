"""Load an executable onto the attached GPU and call it, without importing jax.

Arguments are matched by path, shape and dtype with the manifest: arrays in another order would give
wrong results without an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError
from xlapipe.running.built_executable import BuiltExecutable, read_executable
from xlapipe.running.pjrt.load import create_client, load_executable, select_device

if TYPE_CHECKING:
    from xlapipe.plans.program import ArgumentLeaf
    from xlapipe.running.pjrt.client import Buffer, Client, Device, Executable


class LoadedStep:
    """An executable of `xlapipe.build` on the attached GPU.

    Attributes:
      built: the executable's bytes and manifest.
      device: the GPU.
    """

    def __init__(self, built: BuiltExecutable, device: "Device", executable: "Executable") -> None:
        self.built = built
        self.device = device
        self._executable = executable

    def __repr__(self) -> str:
        return f"<{self.built.manifest.workload} on {self.device}>"

    @property
    def argument_paths(self) -> tuple[str, ...]:
        """The pytree path of each argument leaf, e.g. `cache[0]['k']`."""
        return tuple(leaf.path for leaf in self.built.manifest.arguments)

    @property
    def output_paths(self) -> tuple[str, ...]:
        """The pytree path of each output, in the order in which a call returns them."""
        return tuple(leaf.path for leaf in self.built.manifest.outputs)

    def put(self, array: Any) -> "Buffer":
        """Copies a numpy array to the GPU, for several calls.

        Args:
          array: of a dtype of the executable.
        """
        return self.device.put(array)

    def __call__(self, *args: Any) -> list["Buffer"]:
        """Runs the step; does not wait for the outputs.

        Args:
          args: one tree of dictionaries, lists and tuples per positional argument, as the step
            takes; leaves are numpy arrays, scalars, or buffers of `put` or of an earlier call.
            Buffers of donated arguments cannot be used again.

        Returns:
          The outputs on the GPU, in the order of `output_paths`; `numpy.asarray` copies one back.

        Raises:
          XlapipeError: the arguments are not those that the step was built for.
        """
        return self.call_named(dict(self._paths_of(args)))

    def call_named(self, arrays: Mapping[str, Any]) -> list["Buffer"]:
        """As a call, with the arrays by path.

        Raises:
          XlapipeError: an array is missing or unknown, or has another shape or dtype.
        """
        leaves = self.built.manifest.arguments
        differing = sorted({leaf.path for leaf in leaves} ^ arrays.keys())
        if differing:
            raise XlapipeError(
                f"{self.built.path}: called with other arguments than it was built for: "
                f"{', '.join(differing[:3])}; fix: give those of argument_paths"
            )
        used = sorted(
            (leaf for leaf in leaves if leaf.parameter_number is not None),
            key=lambda leaf: leaf.parameter_number or 0,
        )
        return self._executable.execute([self._placed(leaf, arrays[leaf.path]) for leaf in used])

    def _placed(self, leaf: "ArgumentLeaf", array: Any) -> "Buffer":
        import numpy as np

        from xlapipe.running.pjrt.client import Buffer

        value: Any = array
        if not isinstance(array, Buffer):
            # A Python scalar has no dtype yet.
            value = np.asarray(array, None if hasattr(array, "dtype") else leaf.dtype)
        if (tuple(value.shape), str(value.dtype)) != (leaf.shape, leaf.dtype):
            raise XlapipeError(
                f"{self.built.path}: {leaf.path} is {value.dtype}{list(value.shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}; fix: convert it, or build the step again"
            )
        return value if isinstance(value, Buffer) else self.put(value)

    def _paths_of(self, args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        names = list(dict.fromkeys(_base_of(path) for path in self.argument_paths))
        if len(args) != len(names):
            raise XlapipeError(
                f"{self.built.path}: takes {len(names)} arguments ({', '.join(names)}), found "
                f"{len(args)}; fix: give one tree per argument, or use call_named"
            )
        for name, argument in zip(names, args, strict=True):
            yield from _leaves(argument, name)


def load(folder: str | Path) -> LoadedStep:
    """Load an executable that `xlapipe.build` or `xlapipe build` made onto the attached GPU.

    Raises:
      DumpError: the folder is damaged or holds no executable, or this plugin cannot load it.
      TargetError: there is no GPU, or it was built for another one, or for several.
    """
    built = read_executable(Path(folder))
    client: Client = create_client()
    device = select_device(built.path, built.manifest, client)
    return LoadedStep(built, device, load_executable(built, client))


def _base_of(path: str) -> str:
    """The parameter's name in the path of a leaf: `cache` of `cache[0]['k']`."""
    ends = [position for mark in "[." if (position := path.find(mark)) > 0]
    return path[: min(ends)] if ends else path


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Leaves with the paths that jax's `keystr` gives them."""
    if isinstance(tree, Mapping):
        for key in tree:
            yield from _leaves(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        for name, value in zip(tree._fields, tree, strict=True):
            yield from _leaves(value, f"{path}.{name}")
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{path}[{index}]")
    elif tree is not None:
        yield path, tree
