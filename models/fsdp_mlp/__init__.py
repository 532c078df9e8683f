"""An MLP whose weights are sharded over a mesh axis, and gathered where they are used (FSDP).

    layer.py            the layer: gather, multiply; in backward gather again, reduce-scatter
    model.py            the MLP as a Flax module
    training.py         the training step, its state and how both lie on a mesh
    reference.py        the backward pass of dump 000
    sizes.py            shapes and bytes (no jax)
    workloads.py        what `xlapipe dump` compiles
    expectations.py     what must hold of the plans (no jax)

Sources: Rajbhandari et al., "ZeRO" (2020), stage 3; Zhao et al., "PyTorch FSDP" (2023). Axis
letters: B rows of one device, I and O features in and out, S the rows of a kernel that lie on one
device.
"""
