"""Read dump files into a Plan, with a proto reader and a text reader.

Every plan is checked against the invariants of `xlapipe.plans.verify`. Any fault of a file is
reported as a `DumpError` that states where, what was expected, what was found, and the fix.

Both readers return the same Plan for the same compile. XLA spells some things in several ways;
the readers convert them to one canonical form:

- values are ordered by offset, size and name; allocations by index; aliases by output;
- shapes have layouts and no `/*index=N*/`; values have no `(phi)`;
- backend configs are compact JSON with sorted keys;
- the short spelling of an asynchronous operation (`fusion-start`) is replaced by its opcode
  (`async-start`);
- there is no `get-tuple-element` except as a root: operands name the instruction that makes the
  tuple, as newer HLO text prints them;
- each computation comes after those that it calls; the entry is last;
- among the called computations of a loop, the body comes before the condition.
"""

from xlapipe.dump.readers.source_text import SourceText
from xlapipe.dump.readers.text_reader import DumpTexts, read_path, read_text
from xlapipe.plans import Plan

__all__ = ["DumpTexts", "SourceText", "read_path", "read_proto", "read_text"]


def read_proto(data: bytes, *, where: str) -> Plan:
    """The plan in a serialised HloProto; see `xlapipe.dump.readers.proto_reader.read_proto`."""
    # Imported here because importing protobuf takes longer than reading a text.
    from xlapipe.dump.readers import proto_reader

    return proto_reader.read_proto(data, where=where)
