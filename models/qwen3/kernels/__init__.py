"""Pallas kernels for operations that XLA compiles poorly, in bfloat16 on a GPU.

Through Triton, for any NVIDIA GPU:

triton_call.py        calls such a kernel, on a GPU or in the interpreter
rotation.py           RoPE for whole heads
product_forms.py      how products with weights are divided, by the weight's shape
matvec.py             products with weights, for one token
split_cache.py        a cache whose slots are split over programs, for both attentions of decode
decode_attention.py   attention of one token to the cache
batch_products.py     products with weights, for a few tokens
batch_attention.py    attention of one token of each of several sequences to the cache
decode.py             a decode step of one sequence or of several, with these kernels
heads.py              splits a prompt's qkv projection into queries and the cache
prefill_attention.py  attention of a prompt's tokens to one another

Through Mosaic GPU, for Hopper:

mosaic_call.py        calls such a kernel, and divides its warpgroups' work
hopper_products.py    products of a prompt with weights, and SwiGLU as their epilogue
hopper_heads.py       a prompt's qkv projection, written into queries and the cache
hopper_attention.py   attention of a prompt's tokens to one another
all_layers            all layers of a decode step of one sequence in one kernel

For both:

tiling.py             the shapes that the kernels support
prefill.py            a prompt, with the kernels for any GPU or those for Hopper
"""
