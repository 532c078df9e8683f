"""What jax logs about a GPU that is not there."""

import logging

from xlapipe.devices.environment.machine import Machine


def hide_missing_gpu() -> None:
    """Keeps jax from logging a traceback on a machine without a GPU.

    jax's plugin for CUDA does so if a library that only running needs is not installed.
    """
    logging.getLogger("jax._src.xla_bridge").addFilter(_is_not_about_a_missing_gpu)


def _is_not_about_a_missing_gpu(record: logging.LogRecord) -> bool:
    if not str(record.msg).startswith("Jax plugin configuration error"):
        return True
    return Machine.local().gpu() is not None
