"""Figures of an H100 or H200 that formulas need."""

MULTIPROCESSORS = 132
"""Of the GPU."""

THREADS_OF_A_WARP = 32
"""Threads that run in step."""

SHARED_BYTES, REGISTERS, THREADS = 227 * 1024, 65536, 2048
"""Of a multiprocessor."""

MOST_REGISTERS = 255
"""Of a thread."""

L2_BYTES = 30_000_000
"""That the L2 cache holds from one kernel to the next."""
LEAST_THREADS = 128
"""Blocks of fewer threads start as slowly."""
