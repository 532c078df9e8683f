"""The Flax modules of Qwen3, and its KV cache."""
