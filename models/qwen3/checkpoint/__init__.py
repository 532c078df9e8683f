"""Checkpoints in Hugging Face form: config, tensors, tokenizer, chat template."""
