"""What a step is compiled for and runs on: targets, platforms, the machine, PJRT.

`targets` has the catalogues of GPUs and TPUs, target configs, topologies, and the `Device` whose
speeds determine times. `platforms` has the differences between vendors as data, `pjrt` PJRT's C API
by ctypes, and `environment` what is installed on this machine, its cache and scratch folders, and
the end of processes.
"""
