"""Runs built executables through PJRT's C API, without importing jax.

Importing jax takes longer than loading an executable and running it once.

structs.py          functions and structs of the C API, as ctypes
c_api.py            the functions of a plugin, whose structs are compared with these
client.py           a client, its devices, buffers and executables
cuda_versions.py    the versions of CUDA's libraries, as jax checks them
custom_calls.py     what executables call in jax's libraries
load.py             creates the client, selects its device, loads executables
"""
