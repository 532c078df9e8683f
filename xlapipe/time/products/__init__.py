"""How long matrix products take on GPUs whose products were measured elsewhere."""
