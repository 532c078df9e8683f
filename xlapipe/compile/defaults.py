"""Default settings of a compile. The command line shows them in its help, so imports stay cheap."""

DEFAULT_TARGET = "h200"
DEFAULT_TIMEOUT_SECONDS = 600.0
