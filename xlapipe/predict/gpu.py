"""Figures of an H100 or H200 that formulas need."""

MULTIPROCESSORS = 132
"""Of the GPU."""

THREADS_OF_A_WARP = 32
"""Threads that run in step."""

SHARED_BYTES, REGISTERS, THREADS = 227 * 1024, 65536, 2048
"""Of a multiprocessor."""
