"""Models that xlapipe compiles: Flax NNX modules, their workloads and their expectations.

Importing this package or one model's package does not import jax or flax.

    gemm_backends.py    GEMM backends per policy, and cuBLASLt's workspace (no jax)
    tpu_tiles.py        bytes of arrays on a TPU, with their padding (no jax)
    spectral_diffusion/ learned-time diffusion on meshes
    float8_linear/      a linear layer with float8 matmuls
    compressed_resnet/  ResNets trained on 2-bit activations
    fsdp_mlp/           an MLP with weights sharded over devices
    qwen3/              Qwen3 dense models: prefill, decode, generation, training
"""
