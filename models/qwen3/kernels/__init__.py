"""Pallas kernels (Triton) for what XLA has no good answer to, in bfloat16 on a GPU.

call.py               how a kernel is called, on a GPU or in the interpreter
rotation.py           RoPE by whole heads
matvec.py             products with weights, for one token
attention.py          attention of one token over the cache
decode.py             a decode step of one sequence, made of them
heads.py              from the qkv projection of a prompt into queries and the cache
prefill_attention.py  attention of a prompt's tokens to one another
prefill.py            a prompt, made of them
"""
