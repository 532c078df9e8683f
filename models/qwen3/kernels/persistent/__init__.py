"""All layers of a decode step of one sequence in one kernel, for Hopper and Qwen3-0.6B's sizes.

Five kernels per layer, as in `kernels.decode`, wait for memory latency five times. Here 128 blocks,
one on each multiprocessor, stay for all layers, and weights are on their way while blocks wait.

Work. Every matrix is divided by rows, evenly: a block has 32 rows of qkv, 8 of o_proj, 24 of gate
and the same 24 of up, 8 of down_proj. No product is split over blocks, so that nothing is added in
global memory. Attention is divided by key/value head and by slots: 16 blocks per head.

Weights are read where the model has them; no second copy exists. A block's rows are contiguous, and
go through a ring of 8 KB chunks in shared memory (`ring`), with the cache's chunks in between. One
thread fetches. 8 warps take a phase's weights into registers before they wait for its activations,
and multiply by mma (`products`). A ninth warp adds their sums and publishes the block's values
(`publishing`).

Exchange. Blocks pass values on as packets of 8 bytes in global memory, which contain the number of
the layer (`packets`). A reader polls the packets themselves: there are no barriers between blocks.
A layer has six exchanges: qkv, parts of attention, attention, o_proj, activations, down_proj. Each
buffer is used once per layer. A block can write it again only after it has read values to which all
readers of the earlier ones have contributed.

Waits. All blocks must run at once: `persistent_fits` compares with the multiprocessors. Every
wait for a packet or a chunk is bounded by `lanes.TURNS`; then the kernel traps, which ends the
launch with an error.

Speed. Packets wait for weights that are on their way to the same multiprocessor, so that only few
chunks are on their way at once (`Tuning.window`). All lanes of a warp leave a wait together
(`Lanes.wait`).
"""
