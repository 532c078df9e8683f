"""From dump files to a Plan: two readers, proto and text, that agree on the same compile.

Everything that is read is held against the invariants of `xlapipe.plan.verify`. Whatever is wrong
with a file is a `DumpError` that says where, what was expected, what came and how to mend it.

Both readers bring what XLA spells in more than one way into one form:

- values by offset, size and name; allocations by index; aliases by output;
- shapes with layout and without `/*index=N*/`; `(phi)` is dropped from values;
- backend configs as compact JSON with sorted keys;
- the short spelling of an asynchronous operation (`fusion-start`) as its opcode (`async-start`);
- no `get-tuple-element` but a root: operands name the instruction that makes the tuple (newer
  HLO text prints them so);
- computations behind those that they call, the entry last;
- for a loop, the body before the condition among the called computations.
"""

from xlapipe.plan import Plan
from xlapipe.read.path_reader import read_path
from xlapipe.read.source_text import SourceText
from xlapipe.read.text_reader import DumpTexts, read_text

__all__ = ["DumpTexts", "SourceText", "read_path", "read_proto", "read_text"]


def read_proto(data: bytes, *, where: str) -> Plan:
    """The plan in a serialised HloProto; see `xlapipe.read.proto_reader.read_proto`."""
    # Imported here because protobuf takes longer to import than a text takes to read.
    from xlapipe.read import proto_reader

    return proto_reader.read_proto(data, where=where)
