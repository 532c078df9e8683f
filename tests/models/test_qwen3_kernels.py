"""The kernels for any GPU compared with plain JAX, in Pallas's interpreter, in float32."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels import tiling
from models.qwen3.kernels.matvec import matvec_add, norm_matvec, norm_swiglu
from models.qwen3.kernels.product_forms import FORMS, Form, shapes_of
from models.qwen3.modules.norm import rms_norm
from models.qwen3.steps import abstract_model, decode_step, implementation_for, prefill_step

pytestmark = [pytest.mark.jax, pytest.mark.slow]

CONFIG = Qwen3Config(
    vocab_size=96,
    hidden_size=96,
    intermediate_size=192,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    dtype="float32",
)
TOLERANCE = 5e-6
# Compiling takes most of the time of an interpreted kernel.
COMPILED_FAST = {"xla_backend_optimization_level": 0}


def _random(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _params(config: Qwen3Config) -> Any:
    leaves, structure = jax.tree.flatten(abstract_model(config)[1])
    arrays = [
        _random(n, *leaf.shape) * (0.1 if leaf.ndim > 1 else 1) for n, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, arrays)


def _cache(batch: int, slots: int) -> Any:
    shape = (batch, CONFIG.num_key_value_heads, slots, CONFIG.head_dim)
    return [{"k": _random(100, *shape), "v": _random(101, *shape)}]


def _error(actual: Any, expected: Any) -> float:
    """The largest relative error of any leaf."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


@pytest.mark.parametrize("inputs", [96, 256, 3072])
def test_products_match_those_of_the_modules(inputs: int) -> None:
    """96 and 3,072 are not powers of two: a row consists of several column blocks."""
    x, scale, weight = _random(0, inputs), _random(1, inputs), _random(2, 24, inputs)
    normed = rms_norm(x, scale, 1e-6)
    product = norm_matvec(x, scale, weight, eps=1e-6, interpret=True)
    assert _error(product, weight @ normed) < TOLERANCE
    gate, up = weight[:12] @ normed, weight[12:] @ normed
    activated = norm_swiglu(x, scale, weight, eps=1e-6, interpret=True)
    assert _error(activated, jax.nn.silu(gate) * up) < TOLERANCE
    residual = _random(3, 24)
    added = matvec_add(x, weight, residual, interpret=True)
    assert _error(added, residual + weight @ x) < TOLERANCE


@pytest.mark.parametrize("form", [Form(1, 256, 1), Form(2, 32, 1), Form(4, 64, 2)], ids=str)
def test_products_in_a_loop_match_those_of_the_modules(form: Form) -> None:
    """All columns at once, and blocks of them."""
    x, scale, weight = _random(0, 256), _random(1, 256), _random(2, 24, 256)
    normed = rms_norm(x, scale, 1e-6)
    product = norm_matvec(x, scale, weight, eps=1e-6, interpret=True, form=form)
    assert _error(product, weight @ normed) < TOLERANCE
    gate, up = weight[:12] @ normed, weight[12:] @ normed
    activated = norm_swiglu(x, scale, weight, eps=1e-6, interpret=True, form=form)
    assert _error(activated, jax.nn.silu(gate) * up) < TOLERANCE
    residual = _random(3, 24)
    added = matvec_add(x, weight, residual, interpret=True, form=form)
    assert _error(added, residual + weight @ x) < TOLERANCE


@pytest.mark.parametrize("position", [0, 70, 127, 130])
def test_a_step_with_measured_forms_matches_the_plain_model(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of attention computes one query head; products are loops."""
    for shape in shapes_of(CONFIG).values():
        monkeypatch.setitem(FORMS, shape, Form(2, shape[1] & -shape[1], 1))
    by_xla, by_kernels = (
        jax.jit(decode_step(CONFIG, implementation=name), compiler_options=COMPILED_FAST)(
            *(_params(CONFIG), _cache(1, 128), jnp.array([3]), jnp.array([position]))
        )
        for name in ("xla", "interpret")
    )
    assert _error(by_kernels, by_xla) < TOLERANCE


@pytest.fixture(
    scope="module", params=["one chunk per program", "several per program", "one small chunk"]
)
def decoded(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any, int]]:
    """A function that decodes by XLA and by the kernels; the cache, and its length."""
    slots = 16 if request.param == "one small chunk" else 256
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "several per program":
            patch.setattr(tiling, "PROGRAMS", CONFIG.num_key_value_heads * 2)
            jax.clear_caches()  # or jax would use the kernel that it traced without the patch
        config = replace(CONFIG, tie_word_embeddings=slots == 256)
        params, cache = _params(config), _cache(1, slots)
        steps = [jax.jit(decode_step(config, implementation=name)) for name in ("xla", "interpret")]

        def both(position: int) -> tuple[Any, Any]:
            token, positions = jnp.array([7], jnp.int32), jnp.array([position], jnp.int32)
            by_xla, by_kernels = (step(params, cache, token, positions) for step in steps)
            return by_xla, by_kernels

        both(0)  # compiles while the patch is active
        yield both, cache, slots
    jax.clear_caches()


@pytest.mark.parametrize("share", [0.0, 0.125, 0.3, 0.5, 0.75, 1.0])
def test_a_decode_step_matches_the_plain_model(decoded: tuple[Any, Any, int], share: float) -> None:
    """At the first and last slot, at boundaries of chunks and programs, and inside a chunk."""
    both, _, slots = decoded
    for position in {round(share * (slots - 1)), max(0, round(share * slots) - 1)}:
        by_xla, by_kernels = both(position)
        assert _error(by_kernels, by_xla) < TOLERANCE, position


def test_a_position_beyond_the_cache_writes_nothing(decoded: tuple[Any, Any, int]) -> None:
    both, cache, slots = decoded
    by_xla, by_kernels = both(slots + 3)
    assert _error(by_kernels["logits"], by_xla["logits"]) < TOLERANCE
    assert all(
        (a == b).all()
        for a, b in zip(jax.tree.leaves(by_kernels["cache"]), jax.tree.leaves(cache), strict=True)
    )


@pytest.mark.parametrize("slots", [128, pytest.param(16, marks=pytest.mark.exhaustive)])
def test_a_decode_step_of_several_sequences_matches_the_plain_model(slots: int) -> None:
    """At the first and last slot, at the start of a chunk, and beyond the cache.

    Slots are split over two programs, or one reads all.
    """
    positions = jnp.array([0, slots // 2, slots - 1, slots + 3], jnp.int32)
    ids = jnp.arange(len(positions), dtype=jnp.int32)
    by_xla, by_kernels = (
        jax.jit(decode_step(CONFIG, implementation=name), compiler_options=COMPILED_FAST)(
            _params(CONFIG), _cache(len(positions), slots), ids, positions
        )
        for name in ("xla", "interpret")
    )
    assert _error(by_kernels, by_xla) < TOLERANCE


@pytest.mark.parametrize(
    ("length", "lengths"), [(256, [256, 129]), (64, [40, 1]), (16, [16, 5])], ids=str
)
def test_prompts_match_the_plain_model(length: int, lengths: list[int]) -> None:
    """Several blocks of queries and keys, one block, the smallest block; padding is not written."""
    params, cache = _params(CONFIG), _cache(2, 512)
    ids = jax.random.randint(jax.random.key(5), (2, length), 0, CONFIG.vocab_size, jnp.int32)
    arguments = (params, cache, ids, jnp.array(lengths, jnp.int32))
    by_xla, by_kernels = (
        jax.jit(prefill_step(CONFIG, implementation=name))(*arguments)
        for name in ("xla", "interpret")
    )
    assert _error(by_kernels, by_xla) < TOLERANCE
    for name in ("k", "v"):
        for sequence, tokens in enumerate(lengths):
            unwritten = by_kernels["cache"][0][name][sequence, :, tokens:]
            assert (unwritten == cache[0][name][sequence, :, tokens:]).all()


def test_unsupported_shapes_are_errors() -> None:
    step = decode_step(CONFIG, implementation="interpret")
    zero = jnp.zeros(1, jnp.int32)
    with pytest.raises(ValueError, match="the cache has 40 slots; expected a multiple of 32"):
        jax.eval_shape(step, _params(CONFIG), _cache(1, 40), zero, zero)
    prompt = prefill_step(CONFIG, implementation="interpret")
    with pytest.raises(ValueError, match="24 tokens; expected a multiple of"):
        jax.eval_shape(prompt, _params(CONFIG), _cache(1, 64), jnp.zeros((1, 24), jnp.int32), zero)


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("triton", {}),
        ("xla", {"platform": "cpu"}),
        ("xla", {"dtype": "float32"}),
        ("triton", {"hidden_size": 2048}),
        ("xla", {"hidden_size": 2560}),
        ("triton", {"hidden_size": 2560, "batch": 2}),
        ("triton", {"batch": 2}),
        ("xla", {"batch": 65}),
        ("xla", {"batch": 2, "head_dim": 4}),
        ("xla", {"cache_length": 40}),
        ("triton", {"length": 128, "batch": 2, "cache_length": 40}),
        ("xla", {"length": 24}),
        ("triton", {"compute_capability": "9.0"}),
        ("hopper", {"length": 128, "compute_capability": "9.0", "head_dim": 128}),
        ("triton", {"length": 128, "compute_capability": "10.0", "head_dim": 128}),
        ("triton", {"length": 64, "compute_capability": "9.0", "head_dim": 128}),
    ],
    ids=str,
)
def test_kernels_are_used_for_supported_gpus_and_shapes(
    expected: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "version", lambda package: "0.11.2")
    request = {"platform": "gpu", "batch": 1, "length": 1, "cache_length": 64, **changes}
    shape = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    shape |= {name: request.pop(name) for name in shape.keys() & request.keys()}
    config = replace(CONFIG, dtype=request.pop("dtype", "bfloat16"), **shape)
    assert implementation_for(config, **request) == expected
