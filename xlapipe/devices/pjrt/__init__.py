"""PJRT's C API by ctypes, without jax: for compiling (`compile`) and for running (`run`).

structs.py          functions and structs of the C API, as ctypes
c_api.py            the functions of a plugin, whose structs are compared with these
"""
