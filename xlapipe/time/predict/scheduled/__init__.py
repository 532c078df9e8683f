"""Estimated time of programs whose compiler schedules all that a device does: those of TPUs.

Nothing was run on a TPU here. The rates are those that others published of single operations, and
each part of a time states its basis: `published`, `datasheet` or `assumed`. An estimate is an
estimate until somebody measures.

- `rates`: the constants, with the row that each was chosen from;
- `operation`: the seconds of one operation on the cores;
- `torus`: the seconds of a collective over the links between chips;
- `estimate`: the schedule as a timeline, with its asynchronous transfers.
"""

from xlapipe.time.predict.scheduled.estimate import estimate

__all__ = ["estimate"]
