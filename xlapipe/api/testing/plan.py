"""The plan that the pytest fixture returns."""

from collections.abc import Callable, Sequence

from xlapipe.api.answer import Answer
from xlapipe.api.step_plan import StepPlan
from xlapipe.api.testing.goldens import Goldens
from xlapipe.dump.dump import Dump
from xlapipe.dump.opened import Opened
from xlapipe.expect import Expectation
from xlapipe.plans.program import Program


class PlanUnderTest(StepPlan):
    """What `xlapipe_plan` returns: a `StepPlan` whose false answers pytest explains.

    Attributes:
      dump: all captured files.
    """

    def __init__(
        self,
        dump: Dump,
        program: Program,
        expectations: Sequence[Expectation],
        *,
        key: str,
        goldens: Goldens,
        golden_dump: Callable[[], Dump],
        record: Callable[[Answer], Answer],
    ) -> None:
        super().__init__(Opened(dump.path, program, dump), expectations)
        self.dump = dump
        self._key = key
        self._goldens = goldens
        self._golden_dump = golden_dump
        self._record = record

    def __repr__(self) -> str:
        manifest = self.dump.manifest
        about = ", ".join(filter(None, (manifest.target, self.opened.tuning_word)))
        return f"<plan of {manifest.workload} for {about}>"

    def _answer(self, *expectations: Expectation) -> Answer:
        return self._record(super()._answer(*expectations))

    def matches_golden(self) -> Answer:
        """Whether the plan equals the golden in `hlo_dumps/` next to the test file.

        Where a lock may have been predicted, the untuned plan is compiled and compared: predicted
        locks change when more results are known.

        Raises:
          DumpError: the golden is damaged, or was made by a newer xlapipe.
        """
        return self._record(self._goldens.matches(self._golden_dump(), self._key))
