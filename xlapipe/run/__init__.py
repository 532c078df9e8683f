"""Executables on GPUs: load, run and profile them, and compare planned with measured memory.

`run` does one run, and `launch` starts one process per GPU. `executable` loads through jax; `pjrt`
loads through PJRT's C API without jax. `profile` reads the times of kernels, `memory_account`
compares memory, and `capture_target` captures the attached GPU's target config.
`calibration` times small programs and fits a calibration to them.
"""
