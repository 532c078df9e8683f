"""Draws the losses that resnet_training.py recorded, as an SVG file.

python tests/gpu/resnet_plot.py tests/gpu/resnet_training.json docs/lab/resnet_losses.svg
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 50
COLOURS = {"plain": "#3b6fb6", "2 bits": "#d9762b"}
# Steps of the running mean: a loss is that of one batch.
MEAN_OVER = 10
TICKS = (3, 1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


def smoothed(losses: list[float]) -> Any:
    """Running means."""
    return np.convolve(losses, np.ones(MEAN_OVER) / MEAN_OVER, mode="valid")


def svg(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The plot: a line for each seed of each network, on a logarithmic axis."""
    lines = {name: [smoothed(run["losses"]) for run in seeds] for name, seeds in runs.items()}
    values = np.concatenate([line for seeds in lines.values() for line in seeds])
    low, high = math.log(values.min()), math.log(values.max())
    steps = max(len(line) for seeds in lines.values() for line in seeds)

    def x_of(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / (steps + MEAN_OVER - 1)

    def y_of(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log(loss)) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#777">',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#777" fill="none"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">step</text>',
    ]
    parts += [
        f'<text x="{LEFT - 6}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in TICKS
        if low <= math.log(tick) <= high
    ]
    parts += [
        f'<text x="{x_of(step):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step}</text>'
        for step in range(0, steps + MEAN_OVER, 50)
    ]
    for row, (name, seeds) in enumerate(lines.items()):
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{TOP + 14 + 16 * row}" text-anchor="end" '
            f'fill="{COLOURS[name]}">{name}</text>'
        )
        for line in seeds:
            points = " ".join(
                f"{x_of(step):.1f},{y_of(loss):.1f}" for step, loss in enumerate(line, MEAN_OVER)
            )
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" '
                'stroke-opacity="0.7" stroke-width="1.2"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    record = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(svg(record["runs"]), encoding="utf-8")
