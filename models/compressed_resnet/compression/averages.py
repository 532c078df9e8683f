"""The low-frequency component of activations: averages of 3×3 pixels in float8."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, BFloat16, Float, Float8e4m3fn

from models.compressed_resnet.sizes import POOL

# The largest float8_e4m3fn.
_LARGEST = 448.0


def low_frequency(x: Float[Array, "N H W C"]) -> Float8e4m3fn[Array, "N h w C"]:
    """Averages of 3×3 pixels: h = H // 3, w = W // 3. Pixels after the last square are left out.

    Averages beyond float8's largest value become that value; NaN stays NaN.
    """
    window = (1, POOL, POOL, 1)
    sums = lax.reduce_window(x.astype(jnp.float32), 0.0, lax.add, window, window, "VALID")
    return jnp.clip(sums / POOL**2, -_LARGEST, _LARGEST).astype(jnp.float8_e4m3fn)


def upsample(
    low: Float8e4m3fn[Array, "N h w C"], size: tuple[int, int]
) -> BFloat16[Array, "N H W C"]:
    """The nearest average of each pixel, in bfloat16; zero if an image has no whole square.

    Pixel i takes average `i * h // H`, as torch's nearest interpolation does.
    (`jax.image.resize` takes the average that is nearest to the pixel's centre.)
    """
    images, *low_size, channels = low.shape
    if not low.size:
        return jnp.zeros((images, *size, channels), jnp.bfloat16)
    rows, columns = (
        np.arange(pixels) * averages // pixels
        for pixels, averages in zip(size, low_size, strict=True)
    )
    in_bounds = "promise_in_bounds"
    spread = low.at[:, rows].get(mode=in_bounds).at[:, :, columns].get(mode=in_bounds)
    return spread.astype(jnp.bfloat16)
