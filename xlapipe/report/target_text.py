"""The target of a plan in words, and how to tune for it."""

import shlex


def tune_text(workload: str | None) -> str:
    """The command that tunes; without a name, of any workload."""
    name = shlex.quote(workload) if workload is not None else "WORKLOAD"
    return f"to tune, on the GPU: xlapipe dump {name} --target attached --tuning tune"


def short_label(autotuning: str) -> str:
    """The label of a plan's autotuning without what explains it, which `--all` and JSON have.

    >>> short_label("predicted tuning (results of tuned instructions: 2 known, 13 nearest)")
    'predicted tuning'
    """
    return autotuning.partition(" (")[0]


def device_text(target: str | None, topology: str | None) -> str:
    """The target and its topology, if any: `h200 8x8`."""
    return " ".join(filter(None, (target, topology)))
