"""Predicted autotune locks: what a device's tuner would choose, from what it chose elsewhere.

For each instruction that XLA tunes, the result is taken from a known lock with the same
instruction, or else from the nearest instruction whose result is known. What has neither is left
to XLA's defaults. Predicted tuning serves plans only: it is never written as an autotune lock.
"""
