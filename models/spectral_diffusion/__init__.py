"""Learned-time spectral diffusion on meshes, DiffusionNet's layer.

    layer.py            the layer as a Flax module, and the function it calls
    sizes.py            shapes and bytes (no jax)
    workloads.py        what `xlapipe dump` compiles
    expectations.py     what must hold of the plans (no jax)

Source: Sharp, Attaiki, Crane, Ovsjanikov, "DiffusionNet: Discretization Agnostic Learning on
Surfaces" (2022), section 3.2; dump 002 is its compiled form. Axis letters: B meshes, V vertices,
K eigenvectors of the Laplacian, C channels.
"""
