"""Load an executable onto the attached GPUs and call it.

Arguments are matched by path, shape and dtype with the manifest: arrays in another order would give
wrong results without an error.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from xlapipe.errors import DumpError, XlapipeError
from xlapipe.plans.donatable import argument_name
from xlapipe.run.built_executable import BuiltExecutable, read_executable, start_loading

if TYPE_CHECKING:
    from xlapipe.plans.program import ArgumentLeaf
    from xlapipe.run.executable import LoadedExecutable

# Shape, and name of the dtype.
ArrayType: TypeAlias = tuple[tuple[int, ...], str]


class LoadedStep:
    """An executable of `xlapipe.build` on the attached GPUs.

    Attributes:
      folder: that it was built into.
      device: its first GPU, as jax has it.
      arguments: shape and dtype of each argument leaf by its path, e.g. `cache[0]['k']`. That of a
        typed PRNG key is of its words.
      outputs: the same of each output, in the order in which a call returns them.
      loading: done when it is loaded; the first call waits for it.
    """

    def __init__(
        self, built: BuiltExecutable, device: Any, loading: "Future[LoadedExecutable]"
    ) -> None:
        manifest = built.manifest
        self.folder = built.path
        self.device, self.loading = device, loading
        self.arguments = _types(built.path, manifest.arguments)
        self.outputs = _types(built.path, manifest.outputs)
        self._manifest = manifest
        numbers = [leaf.parameter_number for leaf in manifest.arguments]
        _check_positions(built.path, [number for number in numbers if number is not None])
        _check_positions(built.path, [leaf.index for leaf in manifest.outputs], ordered=True)

    def __repr__(self) -> str:
        return f"<{self._manifest.workload} on {self.device}>"

    @property
    def needed_bytes(self) -> int:
        """Arguments, outputs and temporary memory of a call on one GPU, as XLA reports them."""
        sizes = self._manifest.memory_analysis
        total = sizes["argument_bytes"] + sizes["output_bytes"] + sizes["temp_bytes"]
        return total - sizes["alias_bytes"]

    def wait(self) -> None:
        """Waits until it is loaded.

        Raises:
          DumpError: this plugin cannot load it, or its outputs are not those of the manifest.
        """
        self.loading.result()

    def put(self, path: str, array: Any) -> Any:
        """Copies the argument at `path` to the GPU, for several calls.

        Raises:
          XlapipeError: there is no such argument, or it has another shape or dtype.
        """
        if path not in self._leaves:
            raise XlapipeError(
                f"{self.folder}: no argument {path!r}; fix: give a path of `arguments`"
            )
        return self._placed(self._leaves[path], array)

    def __call__(self, *args: Any) -> list[Any]:
        """Runs the step; does not wait for the outputs.

        Args:
          args: one tree of dictionaries, lists and tuples per positional argument, as the step
            takes; leaves are numpy arrays, scalars, or arrays of `put` or of an earlier call.
            Arrays of donated arguments cannot be used again.

        Returns:
          The outputs on the GPU, in the order of `outputs`; `numpy.asarray` copies one back.

        Raises:
          XlapipeError: the arguments are not those that the step was built for.
        """
        return [*self.call_named(dict(self._paths_of(args))).values()]

    def call_named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """As a call, with arguments and outputs by path.

        Raises:
          XlapipeError: an array is missing or unknown, or has another shape or dtype.
        """
        if arrays.keys() != self.arguments.keys():
            differing = sorted(self.arguments.keys() ^ arrays.keys())
            raise XlapipeError(
                f"{self.folder}: called with other arrays than it was built for: "
                f"{', '.join(differing[:3])}; fix: give those of `arguments`"
            )
        parameters = [self._placed(leaf, arrays[path]) for path, leaf in self._used.items()]
        outputs = self.loading.result().execute(parameters)
        return dict(zip(self.outputs, outputs, strict=True))

    @cached_property
    def _leaves(self) -> dict[str, "ArgumentLeaf"]:
        return {leaf.path: leaf for leaf in self._manifest.arguments}

    @cached_property
    def _used(self) -> dict[str, "ArgumentLeaf"]:
        """The leaves that the program uses, by path, in the order of its parameters."""
        leaves = self._manifest.arguments
        numbered = {leaf.parameter_number: leaf for leaf in leaves}
        numbered.pop(None, None)
        return {numbered[number].path: numbered[number] for number in range(len(numbered))}

    def _placed(self, leaf: "ArgumentLeaf", array: Any) -> Any:
        value = array
        if not (hasattr(array, "dtype") and hasattr(array, "shape")):
            import numpy as np

            value = np.asarray(array, self.arguments[leaf.path][1])
        given = tuple(value.shape), str(value.dtype)
        if given != self.arguments[leaf.path]:
            raise XlapipeError(
                f"{self.folder}: {leaf.path} is {_text(given)}, expected "
                f"{_text(self.arguments[leaf.path])}; fix: convert it, or build the step again"
            )
        return self.loading.result().place(leaf, value)

    def _paths_of(self, args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        names = list(dict.fromkeys(map(argument_name, self.arguments)))
        if len(args) != len(names):
            raise XlapipeError(
                f"{self.folder}: takes {len(names)} arguments ({', '.join(names)}), found "
                f"{len(args)}; fix: give one tree per argument, or use call_named"
            )
        for name, argument in zip(names, args, strict=True):
            yield from _leaves(argument, name)


def load(folder: str | Path, *, wait: bool = True) -> LoadedStep:
    """Load an executable that `xlapipe.build` or `xlapipe build` made onto the attached GPUs.

    Args:
      wait: return when it is loaded; otherwise while it is being loaded, in a thread.

    Raises:
      DumpError: the folder is damaged or holds no executable, or this plugin cannot load it.
      TargetError: there is no GPU, or it was built for other ones.
    """
    built = read_executable(Path(folder))
    step = LoadedStep(built, *start_loading(built))
    if wait:
        step.wait()
    return step


def _types(folder: Path, leaves: Sequence[Any]) -> dict[str, ArrayType]:
    repeated = [path for path, n in Counter(leaf.path for leaf in leaves).items() if n > 1]
    if repeated:
        raise DumpError(
            f"{folder}: the manifest lists {repeated[0]} more than once; fix: build it again"
        )
    return {leaf.path: _stored(leaf.shape, leaf.dtype) for leaf in leaves}


def _stored(shape: tuple[int, ...], dtype: str) -> ArrayType:
    if not dtype.startswith("key<"):
        return shape, dtype
    from xlapipe.run.inputs import stored_array  # imports jax

    words = stored_array(shape, dtype)
    return words.shape, str(words.dtype)


def _check_positions(folder: Path, positions: Sequence[int], *, ordered: bool = False) -> None:
    if [*(positions if ordered else sorted(positions))] != [*range(len(positions))]:
        raise DumpError(
            f"{folder}: the manifest's positions of the program's arrays are not 0 to "
            f"{len(positions) - 1}; fix: build it again"
        )


def _text(array_type: ArrayType) -> str:
    """E.g. `bfloat16[8, 128]`."""
    shape, dtype = array_type
    return f"{dtype}{list(shape)}"


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
