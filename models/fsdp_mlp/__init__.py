"""An MLP whose weights are sharded over a mesh axis and gathered for each use (FSDP).

    layer.py            the layer: gather, multiply; in backward gather again, reduce-scatter
    model.py            the MLP as a Flax module
    training.py         the training step, its state, and their shardings
    reference.py        the backward pass of reference dump 000
    sizes.py            shapes and bytes (no jax)
    workloads.py        the workloads that `xlapipe dump` compiles
    expectations.py     expectations about the plans (no jax)

Reference dump 000 is the backward pass of a 3-layer FSDP MLP (see docs/lab/seeds.md). Sources:
Rajbhandari et al., "ZeRO" (2020), stage 3; Zhao et al., "PyTorch FSDP" (2023). Axis letters: B rows
of one device, I and O features in and out, S the rows of a kernel on one device.
"""
