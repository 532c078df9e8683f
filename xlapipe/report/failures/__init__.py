"""Readers of what a run printed when it ran out of memory.

They read only text: neither jax nor a dump is needed. A figure that the log does not contain is
None.
"""
