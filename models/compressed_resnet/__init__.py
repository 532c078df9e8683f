"""ResNets for images, trained on activations that are kept as 2-bit codes.

    sizes.py          the configuration, shapes and bytes (no jax)
    compression/      codes, masks, low-frequency components, max pooling with offsets
    kernels/          Pallas kernels that read and write what is compressed
    convolution.py    a convolution and its two gradients
    conv_norm.py      a convolution followed by batch norm, forward and backward
    bottleneck.py     a bottleneck block
    stem.py, head.py  the layers before and after the blocks
    uncompressed.py   the stem and blocks for training without compression
    differentiable.py layers whose gradients are written out
    network.py        the whole network, and `apply` for `jax.grad`
    model.py          `ResNet`, the Flax module
    step.py           a training step: forward, backward, SGD with momentum
    workloads.py      the workloads that `xlapipe dump` compiles
    expectations.py   expectations about the plans (no jax)

Arrays of images and activations are NHWC, kernels are OHWI (outputs, height, width, inputs), which
is the layout that cuDNN's convolutions on tensor cores read. Axis letters: N images, H and W rows
and columns, C channels, K classes, M groups of 512 elements.

What the forward pass keeps follows reference dump 001 (docs/lab/seeds.md): for each convolution the
2-bit codes of what its input x and upsample(low_frequency(x)) differ by, and of the normalised
output; for each distinct input its low-frequency component in float8; one bit per element for each
ReLU; one byte per output of max pooling. The program of the dump quantised x itself, although its
backward pass adds the low-frequency component to the codes, so that low frequencies counted twice
in gradients of kernels. This model quantises the difference, which is the published method.
"""
