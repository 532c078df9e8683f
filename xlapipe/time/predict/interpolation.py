"""Interpolation (kriging) of a kernel's ratio between similar timed kernels."""

import math
from collections.abc import Sequence

import numpy as np

from xlapipe.time.predict.calibration import TimedKernel, TimedKind
from xlapipe.time.predict.index_values import Array

# Timed kernels that a prediction is interpolated from.
_NEIGHBOURS = 24


def interpolated(
    point: Sequence[float], in_graph: bool, timed: TimedKind
) -> tuple[float, float, tuple[TimedKernel, ...]]:
    """Logarithm of the ratio, its spread, and the timed kernels by distance.

    Ordinary kriging over the nearest timed kernels, with a Matérn covariance of order 3/2.
    """
    reach, noise = timed.similarity.reach, timed.similarity.noise

    def covariance(differences: Array) -> Array:
        scaled = np.sqrt(3 * (differences**2).sum(-1)) / reach
        return (1 + scaled) * np.exp(-scaled)

    (place,) = timed.placed([(*point, in_graph)])
    differences = timed.places - place
    squares = np.einsum("ij,ij->i", differences, differences)
    around = squares.argsort()[: 2 * _NEIGHBOURS]
    around.sort()
    # math.dist rounds correctly: equally distant kernels stay in the order of the calibration.
    coordinates = place.tolist()
    distances = [math.dist(row, coordinates) for row in timed.places[around].tolist()]
    nearest = around[np.argsort(distances, kind="stable")[:_NEIGHBOURS]]
    kernels = timed.kernels(nearest.tolist())
    places, near = timed.places[nearest], covariance(differences[nearest])
    matrix = covariance(places[:, None] - places) + noise**2 * np.eye(len(kernels))
    values = np.array([math.log(kernel.ratio) for kernel in kernels])
    ones = np.ones_like(values)
    of_values, of_ones, of_near = np.linalg.solve(matrix, np.stack([values, ones, near], 1)).T
    mean = of_values.sum() / of_ones.sum()
    left = (1 - of_near.sum()) ** 2 / of_ones.sum()
    variance = max(0.0, 1 - near @ of_near + left) + noise**2
    scale = (values - mean) @ (of_values - mean * of_ones) / max(1, len(kernels) - 1)
    result = mean + near @ (of_values - mean * of_ones)
    spread = np.sqrt(scale * variance + 0.05**2)
    return float(result), min(float(spread), 1.0), kernels
