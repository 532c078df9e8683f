"""The programs of the zoo as workloads, for compiles without a GPU."""

from programs import zoo_programs
from third import third_programs
from unseen import unseen_programs

from xlapipe import Workload

_PROGRAMS = {"zoo": zoo_programs, "unseen": unseen_programs, "third": third_programs}


def timed(records: str, name: str) -> Workload:
    """One program.

    Args:
      records: `zoo`, `unseen` or `third`.
      name: FAMILY/NAME.
    """
    program = _PROGRAMS[records]()[name]
    return Workload(
        name=name.replace("/", "-"),
        fn=program.fn,
        args=program.structs(),
        donate_argnums=(0,) if program.carried else (),
        options=dict(program.options),
    )
