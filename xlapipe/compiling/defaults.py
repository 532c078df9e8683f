"""Default settings of a compile. The command line shows them in its help, so imports stay cheap."""

DEFAULT_TARGET = "h200"
DEFAULT_TIMEOUT_SECONDS = 600.0
# The share of a GPU's memory that jax gives XLA unless XLA_CLIENT_MEM_FRACTION is set
# (docs.jax.dev, "GPU memory allocation").
DEFAULT_MEMORY_FRACTION = 0.75
