"""Three programs that torch Inductor compiled, as steps of JAX with the same arguments.

    mlp.py           three linear layers with ReLU
    transformer.py   two transformer blocks
    resnet.py        ResNet-18 in training, with batch norm's running statistics
    workloads.py     the workloads: forward and backward pass in one step
    expectations.py  expectations about the plans (no jax)

Arguments have the shapes, dtypes and order of torch's, so that `xlapipe diff` can match them: x is
where the compiled graph takes it, weights are [out, in], images and kernels are NCHW and OIHW.
docs/torch.md compares the plans.
"""
