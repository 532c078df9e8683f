"""Runs built executables through PJRT's C API (`xlapipe.devices.pjrt`), without importing jax.

Importing jax takes longer than loading an executable and running it once.

client.py           a client, its devices, buffers and executables
cuda_versions.py    the versions of CUDA's libraries, as jax checks them
custom_calls.py     what executables call in jax's libraries
load.py             creates the client, selects its device, loads executables
"""
