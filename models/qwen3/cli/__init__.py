"""The command `python -m models.qwen3.generate`: its options, a run, a build, and its output."""
