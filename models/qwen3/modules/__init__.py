"""The Flax modules of Qwen3."""
