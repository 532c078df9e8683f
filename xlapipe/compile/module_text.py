"""A serialised module in the text that XLA makes the keys of autotune results from."""

from xlapipe.dump.readers.hlo_proto import HloProto


def fingerprint_text(content: bytes) -> str:
    """The text of a module as `tuned_instructions` reads it.

    Args:
      content: a serialised HloProto.
    """
    from xlapipe.jax_private import module_text

    return module_text(HloProto.FromString(content).hlo_module.SerializeToString())
