"""For any input, the readers return a plan or raise a DumpError."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlapipe.dump.readers import DumpTexts, SourceText, read_proto, read_text
from xlapipe.errors import DumpError

_FRAGMENTS = st.sampled_from(
    [
        "BufferAssignment:\n",
        "allocation 0: size 8, preallocated-temp:\n",
        "allocation 1: size 4, parameter 0, shape |f32[]| at ShapeIndex {}, maybe-live-out:\n",
        " value: <1 a @0> (size=4,offset=0): f32[]\n",
        " value: <2 b{0} (phi) @1> (size=4,offset=4): f32[]\n",
        " reused by buffers of a different color:\n",
        "  value: <1 a @0> (color=0)\n",
        "\nTotal bytes used: 8 (8B)\n",
        "\nUsed values:\n",
        "<1 a @0>\n",
        " positions:\n  a\n uses:\n",
        " from instruction: %a = f32[] parameter(0)\n",
        "\n\nHloLiveRange (max 1):\n",
        "  InstructionSequence:\n",
        "    0:a\n",
        "  BufferLiveRange:\n",
        "    a{}:0-1\n",
        "  Live ranges at 0 (peak):\n",
        "    a: 4 bytes\n",
        "HloModule m, input_output_alias={ {}: (0, {}, may-alias) }\n",
        "\nFileNames\n",
        '1 "x.py"\n',
        "\nStackFrames\n",
        "1 {file_location_id=1 parent_frame_id=1}\n",
        "ENTRY %main () -> f32[] {\n",
        "  ROOT %a = f32[] parameter(0), metadata={stack_frame_id=1}\n",
        "  %g = f32[] get-tuple-element(%g), index=0\n",
        "}\n",
        "001: kCopy [source | sink] kCopy\n",
        "    002: kWhile [prev=001 (1) | next=003 (1)]\n",
        "condition:\n",
    ]
)
_TEXT = st.lists(_FRAGMENTS | st.text(max_size=8), max_size=25).map("".join)


def _read(
    assignment: str, values: str | None, live_range: str | None, hlo: str | None, thunks: str | None
) -> None:
    sources = [
        None if text is None else SourceText("text", text)
        for text in (values, live_range, hlo, thunks)
    ]
    with contextlib.suppress(DumpError):
        plan = read_text(DumpTexts(SourceText("text", assignment), *sources))
        assert plan.totals.total_allocation_bytes == plan.total_bytes_used


_given_texts = given(_TEXT, *[st.none() | _TEXT] * 4)
test_any_texts = settings(max_examples=100, deadline=None)(_given_texts(_read))
test_many_texts = pytest.mark.slow(settings(max_examples=1000, deadline=None)(_given_texts(_read)))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(DumpError):
        read_proto(data, where="bytes")
