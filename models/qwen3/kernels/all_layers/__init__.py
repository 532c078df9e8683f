"""All layers of a decode step of one sequence in one kernel, for Hopper.

Separate kernels for each product wait for the kernel before, while memory is idle. Here 128 blocks,
one on each multiprocessor, stay for all layers, and weights are on their way while blocks wait for
one another.

Work. Every matrix is divided by rows, evenly. No product is split over blocks, so that nothing is
added in global memory. Attention is divided by key/value head and by slots: 16 blocks per head
(`attention`). `sizes` has how much a block has of each, by the model's sizes.

Weights are read where the model has them; no second copy exists. A block's rows go through a ring
of chunks of 8 KB in shared memory (`ring`), with the cache's chunks in between. Warps that do not
compute fetch, in the order in which 8 warps take.

Exchange. Blocks pass values on as packets of 8 bytes in global memory, which contain the number of
the layer (`packets`). A reader polls the packets themselves: there are no barriers between blocks.
A layer has six exchanges: qkv, parts of attention, attention, o_proj, activations, down_proj. Each
buffer is used once per layer. A block can write it again only after it has read values to which all
readers of the earlier ones have contributed.

Waits. All blocks must run at once: `sizes.persistent_fits` compares with the multiprocessors. Every
wait for a packet or a chunk is bounded by `lanes.TURNS`; then the kernel traps, which ends the
launch with an error. All lanes of a warp leave a wait together (`Lanes.wait`).

Speed. Packets wait for weights that are on their way to the same multiprocessor, so that only few
chunks are on their way at once (`Ring.window`).

Two forms of a block share all this (`block`, `kernel`), and differ in how they multiply:

by_mma  for the sizes of 0.6B: a phase's few weights wait in registers, and are multiplied by mma.
by_fma  for all other sizes: a chunk of weights is multiplied with a vector in shared memory.
"""
