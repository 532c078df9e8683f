"""What the page's map draws beside the figures: roles, live ranges and names of all values.

Values stand in the order of `figures["allocations"][i]["values"]`, one column for each property;
texts are kept once. A model of 28 layers has some thousand values.
"""

from typing import Any

from xlapipe.plan.occupancy import Role
from xlapipe.report.subject import Subject

ROLES = tuple(str(role) for role in Role)


def picture(subject: Subject) -> dict[str, Any]:
    """Columns of the values of a subject's plan.

    `start` and `end` are -1 for a value without a live range. `occupied` holds the bytes in use
    at each schedule position.
    """
    plan, occupancy = subject.plan, subject.peak.occupancy
    strings: dict[str, int] = {"": 0}
    columns: dict[str, list[int]] = {
        name: [] for name in ("role", "start", "end", "label", "opcode", "op_name", "source")
    }

    def intern(text: object) -> int:
        return strings.setdefault(str(text) if text is not None else "", len(strings))

    for allocation in plan.allocations:
        for value in allocation.values:
            live = occupancy.alive.get(value.name)
            defining = plan.instructions.get(value.instruction)
            role = occupancy.role(allocation, value)
            columns["role"].append(ROLES.index(role))
            columns["start"].append(live.start if live is not None else -1)
            columns["end"].append(live.end if live is not None else -1)
            columns["label"].append(intern(subject.labels.value(allocation, value, role)))
            columns["opcode"].append(intern(defining.opcode if defining else None))
            columns["op_name"].append(intern(defining.op_name if defining else None))
            columns["source"].append(intern(plan.nearest_source(value.instruction)))
    live_ranges = plan.live_ranges
    return {
        "roles": ROLES,
        "last_position": occupancy.last_position,
        "peak_position": occupancy.peak_position,
        "schedule": live_ranges.schedule if live_ranges is not None else (),
        "occupied": occupancy.occupied_bytes,
        "strings": list(strings),
        "values": columns,
    }
