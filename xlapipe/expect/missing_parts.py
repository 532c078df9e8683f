"""Violations for parts of a plan that the dump does not contain."""

from xlapipe.expect.expectation import Violation


def no_module(needed: str) -> Violation:
    """The violation for a dump without a complete HLO module.

    Args:
      needed: the part of the module that the expectation needs, e.g. `collectives`.
    """
    return Violation(
        f"the {needed} of the module",
        "the dump has no complete HLO module",
        advice="dump with xla_dump_hlo_as_proto or xla_dump_hlo_as_text",
    )


def no_live_ranges(needed: str) -> Violation:
    """The violation for a dump without live ranges of `needed`."""
    return Violation(
        f"live ranges of {needed}",
        "the dump has none",
        advice="put XLA's *live-range.txt next to the dump",
    )
