"""Spectral diffusion in compiled torch, written as in DiffusionNet (reference dump 002)."""

from typing import Any

import torch
from torch_timing import rotating, torch_timings

VERTICES, EIGENVECTORS, CHANNELS = 2048, 128, 256


def diffuse(
    x: torch.Tensor,
    mass: torch.Tensor,
    evals: torch.Tensor,
    evecs: torch.Tensor,
    time: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    x_spectral = evecs.transpose(-2, -1) @ (x * mass.unsqueeze(-1))
    y_spectral = torch.exp(-evals.unsqueeze(-1) * time) * x_spectral
    return y_spectral, evecs @ y_spectral


def trained(compiled: Any) -> Any:
    def run(
        x: torch.Tensor,
        mass: torch.Tensor,
        evals: torch.Tensor,
        evecs: torch.Tensor,
        time: torch.Tensor,
        g: torch.Tensor,
    ) -> None:
        x.grad = time.grad = None
        compiled(x, mass, evals, evecs, time)[1].backward(g)

    return run


def arguments(
    generator: torch.Generator, meshes: tuple[int, ...], *, gradient: bool
) -> tuple[torch.Tensor, ...]:
    v, k, c = VERTICES, EIGENVECTORS, CHANNELS

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device="cuda")

    inputs = (
        normal(*meshes, v, c),
        ((uniform(*meshes, v) + 0.5) / v).bfloat16(),
        (10 * uniform(*meshes, k)).bfloat16(),
        normal(*meshes, v, k),
        uniform(c).bfloat16(),
    )
    if not gradient:
        return inputs
    inputs[0].requires_grad_()
    inputs[4].requires_grad_()
    return *inputs, normal(*meshes, v, c)


if __name__ == "__main__":
    cases = []
    for gradient, kind in ((False, ""), (True, " fwd+bwd")):
        for meshes, name in (((), ""), ((64,), ", 64 meshes")):
            count = meshes[0] if meshes else 1
            sets = rotating(
                lambda g, m=meshes, b=gradient: arguments(g, m, gradient=b),
                2 * count * VERTICES * (EIGENVECTORS + CHANNELS + 1),
            )
            for mode in ("reduce-overhead", "default"):
                compiled = torch.compile(diffuse, mode=mode, dynamic=False)
                function = trained(compiled) if gradient else compiled
                cases.append(
                    (f"spectral diffusion{kind}{name}", f"torch.compile, {mode}", function, sets)
                )
    torch_timings(cases)
