"""The target of a plan in words, and how to tune for it."""

TUNE = "xlapipe dump WORKLOAD --target attached --tune, on the GPU"


def device_text(target: str | None, topology: str | None) -> str:
    """The target and its topology, if any: `h200 8x8`."""
    return " ".join(filter(None, (target, topology)))
