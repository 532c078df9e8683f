"""Runs built executables through PJRT's C API (`xlapipe.devices.pjrt`), without importing jax.

Importing jax takes longer than loading an executable and running it once.

client.py           a client, its devices, buffers and executables
load.py             creates the client, selects its device, loads executables
"""
