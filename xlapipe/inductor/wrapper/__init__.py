"""`output_code.py`, the wrapper code that Inductor writes: parsed, then replayed in order."""
