"""Programs of a calibration with convolutions of each channel alone, and their gradients."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.timed_program import (
    TYPES,
    Add,
    Arg,
    TimedProgram,
    joined,
    programs_of,
    sizes,
)

_LONG_WINDOW = 31


def channel_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    return programs_of((_channels_alone, _images_of_channels))


def convolution_gradients(
    add: Add, name: str, convolved: Any, x: Arg, w: Arg, *, weights_alone: bool = False
) -> None:
    """Forward, of inputs and of weights, each alone; or those of weights."""
    made = jax.eval_shape(convolved, x.struct(), w.struct())
    slope = Arg(made.shape, made.dtype)

    def of_inputs(w: Any, slope: Any) -> Any:
        zero = jnp.zeros(x.shape, x.dtype)
        return jax.vjp(lambda value: convolved(value, w), zero)[1](slope)[0]

    def of_weights(x: Any, slope: Any) -> Any:
        zero = jnp.zeros(w.shape, w.dtype)
        return jax.vjp(lambda value: convolved(x, value), zero)[1](slope)[0]

    add(f"{name}_weights", of_weights, x, slope)
    if not weights_alone:
        add(f"{name}_forward", convolved, x, w)
        add(f"{name}_inputs", of_inputs, w, slope)


def _channels_alone(add: Add) -> None:
    """Along time: batch, length, channels; elements of the window and their distance."""
    for (batch, length, channels), (window, apart) in itertools.product(
        sizes("4x2000x256 16x500x512 2x8000x64 8x1024x768"), sizes("3x1 3x16 7x1 31x1")
    ):
        for dtype, tag in TYPES:

            def convolved(x: Any, w: Any, apart: int = apart) -> Any:
                return lax.conv_general_dilated(
                    x,
                    w,
                    (1,),
                    "SAME",
                    rhs_dilation=(apart,),
                    dimension_numbers=("NWC", "WIO", "NWC"),
                    feature_group_count=x.shape[2],
                )

            name = f"channels_alone_{tag}_{batch}x{length}x{channels}_{window}x{apart}"
            x, w = Arg((batch, length, channels), dtype), Arg((window, 1, channels), dtype)
            # Of the others, those by tensor cores: some by threads, of two times the elements, take
            # half as long as the rest, for reasons that their sizes do not show.
            weights_alone = window < _LONG_WINDOW or tag == "f32"
            convolution_gradients(add, name, convolved, x, w, weights_alone=weights_alone)


def _images_of_channels(add: Add) -> None:
    """Of images: batch, side, channels; window and stride."""
    for (batch, side, channels), (window, stride) in itertools.product(
        sizes("16x56x128 32x14x512 8x112x32"), sizes("3x1 3x2 7x1")
    ):
        for dtype, tag in TYPES:

            def convolved(x: Any, w: Any, stride: int = stride) -> Any:
                return lax.conv_general_dilated(
                    x,
                    w,
                    (stride, stride),
                    "SAME",
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                    feature_group_count=x.shape[3],
                )

            shape = (batch, side, side, channels)
            name = f"images_of_channels_{tag}_{joined(shape)}_{window}x{stride}"
            x, w = Arg(shape, dtype), Arg((window, window, 1, channels), dtype)
            convolution_gradients(add, name, convolved, x, w)
