"""Changes made to XLA in the memory of the compiling child."""
