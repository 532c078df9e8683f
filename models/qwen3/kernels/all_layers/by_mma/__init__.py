"""The block for Qwen3-0.6B's sizes: weights wait in registers, and are multiplied by mma.

A block has 32 rows of qkv, 8 of o_proj, 24 of gate and the same 24 of up, 8 of down_proj. Its rows
are contiguous; one thread fetches them. 8 warps take a phase's weights into registers before they
wait for its activations (`products`). A ninth warp adds their sums and publishes the block's values
(`block`).
"""
