"""How many compiles of this process ended, and how many of them came from the cache."""

from dataclasses import dataclass, field


@dataclass
class EndedCompiles:
    """The compiles that ended, each with when its result was compiled: None for now.

    Threads add to it.
    """

    compiled_at: list[str | None] = field(default_factory=list)

    def take_note(self) -> str | None:
        """A sentence about those that came from the cache, None if none did; forgets them all."""
        ended, self.compiled_at = self.compiled_at, []
        reused = sorted(when for when in ended if when is not None)
        if not reused:
            return None
        count = len(ended)
        which = "its plan is" if count == 1 else f"{len(reused)} of {count} plans are"
        dates = " to ".join(dict.fromkeys((reused[0], reused[-1])))
        return (
            f"unchanged: {which} from the cache, compiled {dates}; --no-cache compiles "
            f"{'it' if len(reused) == 1 else 'them'} again"
        )


ENDED_COMPILES = EndedCompiles()
