"""Pallas kernels for what XLA compiles poorly, through Triton, for any NVIDIA GPU.

quantise.py   codes of a group in one pass, with or without a low-frequency component
"""
