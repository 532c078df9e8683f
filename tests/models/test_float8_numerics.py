"""The float8 linear layer compared with an independent float64 NumPy version of the recipe."""

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh
from jaxtyping import TypeCheckError

from models.float8_linear.layer import Float8Linear
from models.float8_linear.matmul import backward, float8_matmul, forward
from models.float8_linear.quantise import codes_and_transpose, codes_by_kernel
from models.float8_linear.recipe import E4M3, E5M2, codes_of, scale_of

pytestmark = [pytest.mark.jax, pytest.mark.slow]

F64: TypeAlias = npt.NDArray[np.float64]
BF16 = ml_dtypes.bfloat16
# (rows, in, out): every axis differs, and none is a power of two.
SHAPES = ((48, 80, 112), (16, 16, 16), (96, 160, 32))
FORMATS = {E4M3: (448.0, ml_dtypes.float8_e4m3fn), E5M2: (57344.0, ml_dtypes.float8_e5m2)}


def np_quantised(t: Any, dtype: Any) -> tuple[np.float32, Any]:
    """Scale and codes by the recipe of reference dump 004."""
    limit, code = FORMATS[dtype]
    amax = np.abs(np.asarray(t, np.float64)).max()
    scale = np.float32(limit / np.maximum(amax, 1e-12))
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.asarray(t).astype(np.float32) * scale
        return scale, np.clip(scaled, -limit, limit).astype(code)


def f64(array: Any) -> F64:
    return np.asarray(array).astype(np.float64)


def random(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> Any:
    """Normal values, scaled by a random power of ten for each call."""
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6)).astype(dtype)


def bits(array: Any) -> Any:
    return np.asarray(array).view(np.uint8)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    return np.random.default_rng(seed)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_scales_and_codes_follow_the_recipe(
    dtype: Any, x64: bool, rng: np.random.Generator
) -> None:
    with jax.enable_x64(x64):
        for _ in range(50):
            t = random(rng, 32, 48)
            scale, codes = np_quantised(t, dtype)
            computed_scale = scale_of(jnp.asarray(t), dtype)
            assert computed_scale.dtype == jnp.float32
            # CPUs round divisions correctly, so that float32 gives the same quotient.
            assert np.asarray(computed_scale) == scale
            assert (bits(codes_of(jnp.asarray(t), computed_scale, dtype)) == bits(codes)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_products_match_float64_products_of_the_codes(
    shape: tuple[int, int, int], dtype: Any, rng: np.random.Generator
) -> None:
    rows, inputs, outputs = shape
    x, kernel, g = (
        rng.standard_normal(s).astype(dtype)
        for s in ((rows, inputs), (inputs, outputs), (rows, outputs))
    )
    y, residuals = jax.jit(forward)(x, kernel)
    dx, dkernel = jax.jit(backward)(residuals, g)
    (sx, cx), (sk, ck), (sg, cg) = (
        np_quantised(t, f) for t, f in ((x, E4M3), (kernel, E4M3), (g, E5M2))
    )
    assert (bits(residuals["x_t"]) == bits(cx.T.copy())).all()
    assert (bits(residuals["kernel"]) == bits(ck)).all()
    assert residuals["x_unscale"] == np.float32(1) / sx
    assert residuals["kernel_unscale"] == np.float32(1) / sk
    rounding = {BF16: 2**-8, np.float16: 2**-10, np.float32: 2**-20}[dtype]
    for result, product, exact in (
        (y, f64(cx) @ f64(ck) / f64(sx) / f64(sk), f64(x) @ f64(kernel)),
        (dx, f64(cg) @ f64(ck).T / f64(sg) / f64(sk), f64(g) @ f64(kernel).T),
        (dkernel, f64(cx).T @ f64(cg) / f64(sx) / f64(sg), f64(x).T @ f64(g)),
    ):
        assert result.dtype == jnp.dtype(dtype)
        largest = np.abs(product).max()
        np.testing.assert_allclose(f64(result), product, rtol=rounding, atol=1e-5 * largest)
        # The factors have three (e4m3) or two (e5m2) mantissa bits.
        assert np.linalg.norm(f64(result) - exact) < 0.1 * np.linalg.norm(exact)


def test_autodiff_calls_forward_and_backward(rng: np.random.Generator) -> None:
    x, kernel, g = random(rng, 32, 48), random(rng, 48, 64), random(rng, 32, 64)
    y, pull_back = jax.vjp(float8_matmul, jnp.asarray(x), jnp.asarray(kernel))
    expected_y, residuals = forward(jnp.asarray(x), jnp.asarray(kernel))
    assert (np.asarray(y) == np.asarray(expected_y)).all()
    for result, expected in zip(
        pull_back(jnp.asarray(g)), backward(residuals, jnp.asarray(g)), strict=True
    ):
        assert (np.asarray(result) == np.asarray(expected)).all()


def x_with_one(rng: np.random.Generator, value: float) -> tuple[Any, Any]:
    """x with one element set to `value`, and a kernel."""
    x = rng.standard_normal((32, 48)).astype(BF16)
    x[3, 5] = value
    return x, rng.standard_normal((48, 64)).astype(BF16)


def test_zeros_stay_zeros() -> None:
    x, kernel, g = jnp.zeros((32, 48), BF16), jnp.ones((48, 64), BF16), jnp.zeros((32, 64), BF16)
    y, residuals = forward(x, kernel)
    dx, dkernel = backward(residuals, g)
    assert not any(np.any(np.asarray(result)) for result in (y, dx, dkernel))
    assert residuals["x_unscale"] == np.float32(1) / np.float32(448 / 1e-12)


def test_one_huge_outlier_makes_all_other_codes_zero(rng: np.random.Generator) -> None:
    """With one scale for the tensor, the other elements are below the smallest code."""
    x, kernel = x_with_one(rng, 1e30)
    y, residuals = forward(jnp.asarray(x), jnp.asarray(kernel))
    codes = f64(residuals["x_t"]).T
    assert codes[3, 5] == 448
    assert np.count_nonzero(codes) == 1
    assert np.isfinite(f64(y)).all()
    assert not np.any(np.delete(f64(y), 3, axis=0))
    np.testing.assert_allclose(f64(y)[3], f64(x)[3, 5] * f64(kernel)[5], rtol=0.1, atol=1e28)


def test_a_nan_makes_all_codes_and_products_nan(rng: np.random.Generator) -> None:
    x, kernel = x_with_one(rng, np.nan)
    y, residuals = forward(jnp.asarray(x), jnp.asarray(kernel))
    assert np.isnan(f64(residuals["x_t"])).all()
    assert np.isnan(f64(y)).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinity_makes_its_own_code_nan_and_the_others_zero(
    value: float, rng: np.random.Generator
) -> None:
    """The scale is 0 and its reciprocal infinite, so that every product is NaN."""
    x, kernel = x_with_one(rng, value)
    y, residuals = forward(jnp.asarray(x), jnp.asarray(kernel))
    codes = f64(residuals["x_t"]).T
    assert np.isnan(codes[3, 5])
    assert np.count_nonzero(codes) == 1
    assert np.isinf(residuals["x_unscale"])
    assert np.isnan(f64(y)).all()


@pytest.mark.parametrize("shape", [(16, 16), (48, 80), (128, 256)])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", [1.0, 37.5, 0.0, np.inf, np.nan])
def test_the_kernel_gives_the_codes_of_plain_jax(
    shape: tuple[int, int], dtype: Any, scale: float, rng: np.random.Generator
) -> None:
    t = rng.standard_normal(shape) * np.exp(rng.uniform(-12, 8, shape))
    t[0, :6] = np.nan, np.inf, -np.inf, 0, -0.0, 3e38
    with np.errstate(over="ignore"):
        array = jnp.asarray(t.astype(BF16))
    kernel = partial(codes_by_kernel, dtype=dtype, interpret=True)
    by_kernel = kernel(array, jnp.float32(scale))
    plain = codes_and_transpose(array, jnp.float32(scale), dtype)
    for result, expected in zip(by_kernel, plain, strict=True):
        assert result.shape == expected.shape
        np.testing.assert_array_equal(f64(result), f64(expected))
    np.testing.assert_array_equal(f64(by_kernel[0]), f64(by_kernel[1]).T)


def train(linear: Any, steps: int = 60) -> list[float]:
    """Losses of a small model trained by gradient descent to reproduce a fixed random function."""
    rngs = nnx.Rngs(0)
    options: dict[str, Any] = {"dtype": jnp.bfloat16, "rngs": rngs}
    model = nnx.Sequential(linear(32, 64, **options), nnx.relu, linear(64, 16, **options))
    x = jax.random.normal(jax.random.key(1), (128, 32))
    target = jnp.tanh(x @ jax.random.normal(jax.random.key(2), (32, 16)) / 6)
    graphdef, params = nnx.split(model)

    def loss(params: Any) -> jax.Array:
        return jnp.mean((nnx.merge(graphdef, params)(x).astype(jnp.float32) - target) ** 2)

    @jax.jit
    def step(params: Any) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, d: p - 0.3 * d, params, gradient), value

    losses = []
    for _ in range(steps):
        params, value = step(params)
        losses.append(float(value))
    return losses


def test_training_losses_are_close_to_those_in_bfloat16() -> None:
    bfloat16, float8 = train(nnx.Linear), train(Float8Linear)
    assert bfloat16[-1] < 0.4 * bfloat16[0]
    assert float8 != bfloat16
    np.testing.assert_allclose(float8, bfloat16, rtol=0.1)


def test_the_layer_has_the_parameters_of_nnx_linear() -> None:
    ours = Float8Linear(32, 48, rngs=nnx.Rngs(3))
    theirs = nnx.Linear(32, 48, rngs=nnx.Rngs(3))
    params, expected = (nnx.to_pure_dict(nnx.state(layer)) for layer in (ours, theirs))
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), params, expected)))
    without_bias = Float8Linear(32, 48, use_bias=False, rngs=nnx.Rngs(3))
    assert without_bias.bias is None


def test_leading_axes_are_rows(rng: np.random.Generator) -> None:
    layer = Float8Linear(32, 48, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    layer.bias[...] = jnp.arange(48.0)
    x = jnp.asarray(random(rng, 2, 3, 16, 32))
    y = layer(x)
    assert y.shape == (2, 3, 16, 48)
    assert (np.asarray(y).reshape(-1, 48) == np.asarray(layer(x.reshape(-1, 32)))).all()
    product = float8_matmul(x.reshape(-1, 32), layer.kernel[...].astype(jnp.bfloat16))
    expected = product + jnp.arange(48.0, dtype=jnp.bfloat16)
    assert (np.asarray(y).reshape(-1, 48) == np.asarray(expected)).all()


@pytest.mark.parametrize(
    ("shape", "features", "message"),
    [
        ((17, 32), (32, 48), "rows of x to be a multiple of 16; found 17"),
        ((2, 9, 32), (32, 48), "rows of x to be a multiple of 16; found 18"),
        ((0, 32), (32, 48), "rows of x to be a multiple of 16; found 0"),
        ((16, 40), (40, 48), "in_features to be a multiple of 16; found 40"),
        ((16, 32), (32, 50), "out_features to be a multiple of 16; found 50"),
    ],
)
def test_unsupported_shapes_are_errors_unless_unquantised_is_allowed(
    shape: tuple[int, ...], features: tuple[int, int], message: str
) -> None:
    x = jnp.ones(shape, jnp.bfloat16)
    with pytest.raises(ValueError, match=message):
        Float8Linear(*features, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)(x)
    unquantised = Float8Linear(
        *features, otherwise="unquantised", rngs=nnx.Rngs(0), dtype=jnp.bfloat16
    )
    plain = nnx.Linear(*features, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    assert (np.asarray(unquantised(x)) == np.asarray(plain(x))).all()


def test_unsupported_dtypes_and_options_are_errors() -> None:
    x = jnp.ones((16, 32))
    with pytest.raises(ValueError, match="same dtype, bfloat16, float16 or float32"):
        Float8Linear(32, 48, rngs=nnx.Rngs(0), dtype=jnp.float8_e4m3fn)(x)
    wide = {"preferred_element_type": jnp.float32, "dtype": jnp.bfloat16}
    with pytest.raises(ValueError, match="float8 does not support preferred_element_type"):
        Float8Linear(32, 48, rngs=nnx.Rngs(0), **wide)(x)
    with pytest.raises((ValueError, TypeCheckError), match="otherwise"):
        Float8Linear(32, 48, otherwise="bf16", rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("device_kind", "refused"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA RTX A6000", True),
        ("NVIDIA H200 141GB HBM3e", False),
        ("NVIDIA GPU that is not in the catalogue", False),
    ],
)
def test_gpus_without_float8_are_errors(device_kind: str, refused: bool) -> None:
    device = AbstractDevice(device_kind=device_kind, num_cores=None, platform="gpu")
    layer = Float8Linear(32, 48, rngs=nnx.Rngs(0))
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        if refused:
            with pytest.raises(ValueError, match=r"8\.9 or newer \(Ada, Hopper\); found NVIDIA"):
                jax.eval_shape(layer, jnp.ones((16, 32)))
        else:
            assert jax.eval_shape(layer, jnp.ones((16, 32))).shape == (16, 48)
