"""Interpolation (kriging) of a kernel's ratio between similar timed kernels."""

import math
from collections.abc import Sequence

import numpy as np

from xlapipe.time.predict.calibration import TimedKind
from xlapipe.time.predict.fitted import Fitted
from xlapipe.time.predict.index_values import Array

# Timed kernels that a prediction is interpolated from.
_NEIGHBOURS = 24


def interpolated(
    point: Sequence[float], in_graph: bool, timed: TimedKind, fitted: Fitted
) -> tuple[float, float, tuple[int, ...]]:
    """Logarithm of the ratio, its spread, and the numbers of timed kernels by distance.

    Ordinary kriging over the nearest timed kernels, with a Matérn covariance of order 3/2.
    """
    similarity = fitted.similarity(timed.kind)
    reach, noise = similarity.reach, similarity.noise

    def covariance(differences: Array) -> Array:
        scaled = np.sqrt(3 * (differences**2).sum(-1)) / reach
        return (1 + scaled) * np.exp(-scaled)

    place, all_places = np.array([*point, in_graph], np.float64), timed.places
    scales = fitted.scales.get(timed.kind, ())
    if len(scales) == len(place):
        place, all_places = place * scales, all_places * scales
    differences = all_places - place
    squares = np.einsum("ij,ij->i", differences, differences)
    around = squares.argsort()[: 2 * _NEIGHBOURS]
    around.sort()
    # math.dist rounds correctly: equally distant kernels stay in the order of the calibration.
    coordinates = place.tolist()
    distances = [math.dist(row, coordinates) for row in all_places[around].tolist()]
    nearest = around[np.argsort(distances, kind="stable")[:_NEIGHBOURS]]
    places, near = all_places[nearest], covariance(differences[nearest])
    matrix = covariance(places[:, None] - places) + noise**2 * np.eye(len(nearest))
    values = np.array([math.log(timed.ratio[number]) for number in nearest])
    ones = np.ones_like(values)
    of_values, of_ones, of_near = np.linalg.solve(matrix, np.stack([values, ones, near], 1)).T
    mean = of_values.sum() / of_ones.sum()
    left = (1 - of_near.sum()) ** 2 / of_ones.sum()
    variance = max(0.0, 1 - near @ of_near + left) + noise**2
    scale = (values - mean) @ (of_values - mean * of_ones) / max(1, len(nearest) - 1)
    result = mean + near @ (of_values - mean * of_ones)
    spread = np.sqrt(scale * variance + 0.05**2)
    return float(result), min(float(spread), 1.0), tuple(nearest.tolist())
