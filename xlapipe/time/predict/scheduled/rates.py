"""Constants of TPUs, with the published figure that each was chosen from.

Sources: [R] AI-Hypercomputer/tpu-recipes, micro-benchmarks of v6e; [B] AI-Hypercomputer's
accelerator-microbenchmarks, results of tpu7x and v6e. `tests/time/test_scheduled.py` lists
which rows chose a constant, and which judge it.
"""

PEAK_SHARE = 0.9
"""Share of the matrix units' rate: a product of 8192³ reaches 827 of 918 TFLOP/s on v6e [R]."""
BANDWIDTH_SHARE = 0.85
"""Share of HBM's rate: copies reach 1,360 of 1,640 GB/s on v6e [R], 3,203 of 3,700 on tpu7x [B]."""
START_SECONDS = 0.8e-6
"""Until the first bytes of HBM are there: 128³ takes 1.62 µs on tpu7x, with two of it [B]."""
BLOCK_BYTES = 1 << 22
"""That a kernel moves while it computes the one before: 1024³ takes 6.14 µs on tpu7x [B]."""
LINK_SHARE = 0.89
"""Share of the links' rate: an all-gather of 256 MiB over 4 chips of tpu7x, 178.8 GB/s [B]."""
REDUCE_SHARE = 0.65
"""The same of an all-reduce of 0.6 GB over 256 chips of v6e: 235.8 GB/s [B]."""
EXCHANGE_SECONDS = 11e-6
"""Start of a collective: an all-gather of 1 MiB over 4 chips of tpu7x takes 21.9 µs [B]."""
HOP_SECONDS = 1e-6
"""Seconds per hop between chips; jax-ml.github.io/scaling-book. Not compared."""
SLICE_SHARE = 0.33
"""Share of the rate between slices: an all-reduce over two slices of 256 chips of v6e sends 4.11 of
12.5 GB/s a device [B]."""
LEAST_HOST_SHARE, MOST_HOST_SHARE = 0.5, 1.5
"""Range of the rate between a chip and its host, as a share of the assumed one."""
KERNEL_SHARE, LEAST_KERNEL_SHARE, MOST_KERNEL_SHARE = 0.85, 0.6, 0.92
"""Share of the rate that products in a Pallas kernel reach: 0.79 and 0.92 for 4096³ and 8192³ in
blocks of 512 x 1024 x 1024 on v5e, in jax's notebook. Assumed for kernels of other forms."""
FUNCTION_OPERATIONS, ANGLE_OPERATIONS = 4.0, 118.0
"""Operations on elements that `exp`, `tanh`, `log` or `rsqrt` takes as long as, and a sine: libtpu
0.0.50.1 schedules 1.00, 1.04, 1.00, 1.04 and 29.4 cycles for 1,024 elements of float32 on v6e, and
0.25 for an addition."""
LEAST_FACTOR, MOST_FACTOR = 0.85, 1.25
"""Range of the parts that are not assumed: a judgement from the rows that judge, not a fit."""
