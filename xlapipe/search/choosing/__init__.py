"""The fastest form of a step that fits a device: candidates, compiles, rows, the code to write."""
