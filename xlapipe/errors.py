"""The errors that a user can meet; anything else that escapes is a bug in xlapipe.

The command line prints the message of an `XlapipeError` and exits with code 2.
"""


class XlapipeError(Exception):
    """Bad input or a failed compile.

    The message says where, what was expected, what came, and how to mend it.
    """


class DumpError(XlapipeError):
    """A dump file that is missing, damaged, contradictory or of an unknown form."""


class PlanMismatchError(DumpError):
    """A plan that breaks an invariant of buffer assignment, or XLA's own total."""


class TargetError(XlapipeError):
    """A GPU that is unknown, unsupported, or not attached."""


class WorkloadError(XlapipeError):
    """A workload that cannot be found, imported, built or lowered."""


class ParameterError(WorkloadError):
    """An argument that the function which makes a workload does not take."""


class CompileError(XlapipeError):
    """A compile that failed, crashed, was killed or ran out of time."""
