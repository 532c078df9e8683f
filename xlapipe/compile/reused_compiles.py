"""How many compiles of this process ended, and how many of them came from the cache."""

COMPILED_AT: list[str | None] = []
"""When the result of each compile that ended was compiled: None for now. Threads add to it."""


def take_note() -> str | None:
    """A sentence about those that came from the cache, None if none did; forgets them all."""
    ended = COMPILED_AT.copy()
    COMPILED_AT.clear()
    reused = sorted(when for when in ended if when is not None)
    if not reused:
        return None
    which = "its plan is" if len(ended) == 1 else f"{len(reused)} of {len(ended)} plans are"
    dates = " to ".join(dict.fromkeys((reused[0], reused[-1])))
    return (
        f"unchanged: {which} from the cache, compiled {dates}; --no-cache compiles "
        f"{'it' if len(reused) == 1 else 'them'} again"
    )
