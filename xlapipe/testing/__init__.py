"""What the pytest plugin is made of: the fixture `xlapipe_plan` is a `PlansOfTest`."""

from xlapipe.testing.answer import Answer
from xlapipe.testing.plan import PlanUnderTest
from xlapipe.testing.session import PlansOfTest

__all__ = ["Answer", "PlanUnderTest", "PlansOfTest"]
