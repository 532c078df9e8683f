"""Pallas kernels for what XLA has no good answer to, in bfloat16 on a GPU.

Through Triton, for any GPU of NVIDIA's:

call.py               how such a kernel is called, on a GPU or in the interpreter
rotation.py           RoPE by whole heads
matvec.py             products with weights, for one token
decode_attention.py   attention of one token over the cache
decode.py             a decode step of one sequence, made of them
heads.py              from the qkv projection of a prompt into queries and the cache
prefill_attention.py  attention of a prompt's tokens to one another

Through Mosaic GPU, for Hopper:

mosaic.py             how such a kernel is called, and what its warpgroups do
hopper_products.py    products of a prompt with weights, and SwiGLU behind them
hopper_heads.py       the qkv projection of a prompt into queries and the cache
hopper_attention.py   attention of a prompt's tokens to one another

Of both:

tiling.py             which shapes they take
prefill.py            a prompt, made of either
"""
