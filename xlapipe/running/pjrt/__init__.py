"""Runs built executables through PJRT's C API, without importing jax.

Importing jax takes longer than loading an executable and running it once.
"""
