"""Serialised protos do not depend on which of XLA's fields the reader's schema has."""

from pathlib import Path

import pytest

from tests.shared.dumps import DATA, proto_of
from xlapipe.compile.capture import _Relative
from xlapipe.compile.wire_format import field, in_number_order, number
from xlapipe.dump.readers.hlo_proto import HloProto


@pytest.mark.parametrize("dump", ["jaxlib-0.9.2/step", "jaxlib-0.12.0.1/step"])
def test_the_order_in_which_python_writes_has_no_effect(dump: str) -> None:
    content = in_number_order(proto_of(DATA / dump), HloProto)
    written = HloProto.FromString(content).SerializeToString(deterministic=True)
    assert written != content, "Python writes fields that the schema lacks last"
    assert in_number_order(written, HloProto) == content
    assert HloProto.FromString(content) == HloProto.FromString(written)


def test_fields_of_submessages_are_ordered_and_repeated_ones_keep_their_order() -> None:
    unknown = field(999, b"last")
    module = unknown + number(5, 7) + field(1, b"name") + unknown
    ordered = field(1, b"name") + number(5, 7) + unknown + unknown
    assert in_number_order(field(1, module), HloProto) == field(1, ordered)


@pytest.mark.parametrize("dump", ["jaxlib-0.9.2/step", "jaxlib-0.12.0.1/step"])
def test_paths_are_made_relative_as_if_all_of_the_module_were_written_again(dump: str) -> None:
    def with_paths(folder: str) -> bytes:
        proto = HloProto.FromString(proto_of(DATA / dump))
        names = proto.hlo_module.stack_frame_index.file_names
        names[:] = [f"{folder}{number}.py" for number in range(max(len(names), 1))]
        return in_number_order(proto.SerializeToString(deterministic=True), HloProto)

    relative = _Relative(Path("/home/me"))
    assert relative.in_proto(with_paths("/home/me/steps/")) == with_paths("steps/")
