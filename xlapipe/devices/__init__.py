"""What a step is compiled for and runs on: targets, platforms, the machine, PJRT's C API."""
