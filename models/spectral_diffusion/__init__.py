"""Learned-time spectral diffusion on meshes, DiffusionNet's layer.

    layer.py            the layer as a Flax module, and the function it calls
    sizes.py            shapes and bytes (no jax)
    workloads.py        the workloads that `xlapipe dump` compiles
    expectations.py     expectations about the plans (no jax)

Source: Sharp, Attaiki, Crane, Ovsjanikov, "DiffusionNet: Discretization Agnostic Learning on
Surfaces" (2022), section 3.2. Reference dump 002 (spectral diffusion, see docs/lab/seeds.md) is a
compiled form of the layer. Axis letters: B meshes, V vertices, K eigenvectors of the Laplacian,
C channels.
"""
