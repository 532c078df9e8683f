"""Read what a `send` or `recv` exchanges between slices of TPUs: a collective over the network.

libtpu writes a collective between slices as a `send` of its operand to the host and a `recv` of its
result, with the same rendezvous. Their frontend attributes name the collective and its devices, in
one of three forms; a device is numbered SLICE × 100,000 + its number in the slice:

    {1,2}x{0:3}                          devices 0 to 3, each with its number in slices 1 and 2
    {{100000,200000},{100001,200001}}    groups
    {{100000->200000}}                   pairs
"""

import re
from collections.abc import Mapping

from xlapipe.dump.readers.hlo_syntax import unescape
from xlapipe.dump.readers.replica_groups import groups_of_text
from xlapipe.plans.hlo import CollectiveGroups, SliceTransfer
from xlapipe.plans.opcodes import COLLECTIVES

_TYPE, _TARGET = "_xla_megascale_transfer_type", "_xla_megascale_target"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\{(?:\{[^{}"]*\},?)*\}))')
_NUMBERS = r"\d+(?::\d+)?"
_PRODUCT = re.compile(
    rf"\{{(?P<slices>\d+(?:,\d+)*)\}}x\{{(?P<devices>{_NUMBERS}(?:,{_NUMBERS})*)\}}"
)
_PAIRS = re.compile(r"\{(?:\{\d+->\d+\},?)*\}")
_PAIR = re.compile(r"(\d+)->(\d+)")
_DEVICES_PER_SLICE = 100_000
# A permutation between slices; the other types are XLA's collectives in capitals.
_ONE_TO_ONE = "ONE_TO_ONE"


def transfer_of_text(frontend_attributes: str) -> CollectiveGroups | None:
    """`transfer_of` for frontend attributes as HLO text has them, `{a="x",b={{0,1}}}`."""
    return transfer_of(
        {
            name: braces or unescape(quoted)
            for name, quoted, braces in _FIELD.findall(frontend_attributes)
        }
    )


def transfer_of(attributes: Mapping[str, str]) -> CollectiveGroups | None:
    """The collective between slices that frontend attributes describe."""
    if _TYPE not in attributes:
        return None
    name = attributes[_TYPE]
    kind = "collective-permute" if name == _ONE_TO_ONE else name.lower().replace("_", "-")
    target = attributes.get(_TARGET, "")
    transfer = SliceTransfer(kind, attributes.get(_RENDEZVOUS, ""))
    if kind not in COLLECTIVES:
        return None
    if _PAIRS.fullmatch(target) and "->" in target:
        pairs = tuple((int(source), int(end)) for source, end in _PAIR.findall(target))
        return CollectiveGroups(source_target_pairs=pairs, transfer=transfer)
    if match := _PRODUCT.fullmatch(target):
        slices = [int(number) for number in match["slices"].split(",")]
        devices = [device for part in match["devices"].split(",") for device in _range(part)]
        groups = tuple(
            tuple(number * _DEVICES_PER_SLICE + device for number in slices) for device in devices
        )
        return CollectiveGroups(groups, transfer=transfer)
    groups_or_none = groups_of_text(target) if target else None
    return CollectiveGroups(groups_or_none, transfer=transfer) if groups_or_none else None


def _range(text: str) -> range:
    """The numbers of `3`, or of `0:3`, which includes both ends; at most those of one slice."""
    first, _, last = text.partition(":")
    return range(int(first), min(int(last or first), _DEVICES_PER_SLICE - 1) + 1)
