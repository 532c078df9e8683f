"""Load executables on GPUs, run them, and compare planned with measured memory."""
