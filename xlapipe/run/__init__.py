"""Executables on GPUs: load, run and profile them, and compare planned with measured memory.

`run` does one run, and `run_result` compares its memory with the plan's. `built_executable` reads
an executable, `executable` loads it through jax, and `capture_target` captures the attached GPU's
target config.
`calibration` times small programs and fits a calibration to them.
"""
