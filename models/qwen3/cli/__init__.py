"""The parts of the command `python -m models.qwen3.generate`."""
