"""A serialised module in the text that XLA makes the keys of autotune results from."""

from xlapipe.readers.hlo_proto import HloProto


def fingerprint_text(content: bytes) -> str:
    """The text of a module as `tuned_instructions` reads it.

    Args:
      content: a serialised HloProto.
    """
    from jaxlib import _hlo  # type: ignore[attr-defined]

    options = _hlo.HloPrintOptions.fingerprint()
    options.print_backend_config = True
    options.print_operand_shape = True
    module = HloProto.FromString(content).hlo_module.SerializeToString()
    return str(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string(options))
