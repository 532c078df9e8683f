"""The arrays that the two steps take and return, by path, as manifests record them. Imports no jax.

Paths are those of jax: `params['layers'][0]['mlp']['down_proj']['weight']`, `cache[3]['k']`,
`state['eos']`, `token_ids`. Outputs have the prefix `out`: `out['cache'][3]['k']`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from models.qwen3.checkpoint.leaf_tensors import leaves
from models.qwen3.config import Qwen3Config
from models.qwen3.generation.state import empty_state
from models.qwen3.generation.static_sizes import GenerationSizes
from xlapipe import XlapipeError

# Shape, and name of the dtype.
ArrayType: TypeAlias = tuple[tuple[int, ...], str]
# By path.
ArrayTypes: TypeAlias = dict[str, ArrayType]

TOKEN_IDS, LENGTHS, TOKENS = "token_ids", "lengths", "tokens"
_NAMED = 3


def prompt_arguments(config: Qwen3Config, sizes: GenerationSizes) -> ArrayTypes:
    """The arguments of `decode_loop.prompt_step`."""
    return {
        **params_arrays(config),
        **cache_arrays(config, sizes),
        **_state_arrays(sizes, whole=False),
        TOKEN_IDS: ((sizes.batch, sizes.bucket), "int32"),
        LENGTHS: ((sizes.batch,), "int32"),
    }


def decode_arguments(config: Qwen3Config, sizes: GenerationSizes) -> ArrayTypes:
    """The arguments of `decode_loop.decode_loop`."""
    return {
        **params_arrays(config),
        **cache_arrays(config, sizes),
        **_state_arrays(sizes, whole=True),
    }


def step_outputs(config: Qwen3Config, sizes: GenerationSizes, *, steps: int) -> ArrayTypes:
    """The outputs of both; `steps` is the number of tokens of each sequence."""
    types = {**cache_arrays(config, sizes), **_state_arrays(sizes, whole=True)}
    types[TOKENS] = ((sizes.batch, steps), "int32")
    return {output_path(path): array_type for path, array_type in types.items()}


def params_arrays(config: Qwen3Config) -> ArrayTypes:
    """The weights."""
    return {params_path(leaf.path): (leaf.shape, config.dtype) for leaf in leaves(config)}


def cache_arrays(config: Qwen3Config, sizes: GenerationSizes) -> ArrayTypes:
    """The cache: keys and values of each layer."""
    shape = config.cache_shape(batch=sizes.batch, cache_length=sizes.cache_length)
    return {
        f"cache[{layer}][{name!r}]": (shape, config.dtype)
        for layer in range(config.num_hidden_layers)
        for name in ("k", "v")
    }


def params_path(leaf_path: str) -> str:
    """The path of a leaf of the weights, e.g. of `layers.0.input_norm.scale`."""
    keys = (int(key) if key.isdigit() else key for key in leaf_path.split("."))
    return "params" + "".join(f"[{key!r}]" for key in keys)


def output_path(argument_path: str) -> str:
    """The path of the output that is passed to the next step as this argument."""
    name, bracket, keys = argument_path.partition("[")
    return f"out[{name!r}]{bracket}{keys}"


def by_path(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, with their paths."""
    if not isinstance(tree, Mapping):
        yield name, tree
        return
    for key, branch in tree.items():
        yield from by_path(f"{name}[{key!r}]", branch)


def _state_arrays(sizes: GenerationSizes, *, whole: bool) -> ArrayTypes:
    state = empty_state(batch=sizes.batch, candidates=sizes.candidates, whole=whole)
    return {path: (array.shape, array.dtype.name) for path, array in by_path("state", state)}


def check_types(folder: Path, expected: ArrayTypes, built_for: Mapping[str, ArrayType]) -> None:
    """Checks that an executable takes, or returns, exactly the arrays that it is expected to.

    Args:
      folder: of the executable, for messages.
      built_for: what it takes or returns.

    Raises:
      XlapipeError: an array is missing or unknown, or has another shape or dtype.
    """
    problems = [
        *(f"{path} is missing" for path in expected if path not in built_for),
        *(f"{path} is unknown" for path in built_for if path not in expected),
        *(
            f"{path} is {described(built_for[path])}, expected {described(expected[path])}"
            for path in expected
            if path in built_for and built_for[path] != expected[path]
        ),
    ]
    if problems:
        more = f", and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise XlapipeError(
            f"{folder}: not built for this model: {'; '.join(problems[:_NAMED])}{more}; fix: build "
            "it again for this model"
        )


def described(array_type: ArrayType) -> str:
    """E.g. `bfloat16[8, 128]`."""
    shape, dtype = array_type
    return f"{dtype}{list(shape)}"
