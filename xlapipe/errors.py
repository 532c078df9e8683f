"""The errors that a user can meet; any other exception that escapes is a bug in xlapipe.

The command line prints the message of an `XlapipeError` and exits with code 2.
"""


class XlapipeError(Exception):
    """Bad input or a failed compile.

    The message states where, what was expected, what was found, and how to fix it (`fix: …`).
    """


class DumpError(XlapipeError):
    """A dump file that is missing, damaged, contradictory or in an unknown format."""


class PlanMismatchError(DumpError):
    """A plan that breaks an invariant of buffer assignment, or disagrees with XLA's own total."""


class TargetError(XlapipeError):
    """A GPU that is unknown, unsupported or not attached."""


class NetworkError(XlapipeError):
    """A network between GPUs that is unknown, or whose description is damaged."""


class WorkloadError(XlapipeError):
    """A workload that cannot be found, imported, built or lowered."""


class ParameterError(WorkloadError):
    """An argument that a workload's factory function does not accept."""


class DifferentTracesError(WorkloadError):
    """A step that is another program each time that it is traced."""


class CompileError(XlapipeError):
    """A compile that failed, crashed, was killed or timed out."""


class EndedBySignalError(CompileError):
    """A compile that a signal ended, such as the kernel's where memory is short."""
