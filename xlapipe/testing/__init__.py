"""What the pytest plugin is made of; `xlapipe_plan` returns a `PlanUnderTest`."""

from xlapipe.testing.answer import Answer
from xlapipe.testing.plan import PlanUnderTest

__all__ = ["Answer", "PlanUnderTest"]
