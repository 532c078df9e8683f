"""The fixture `xlapipe_plan` of one test, and the plan that it returns."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from xlapipe.api.answer import Answer
from xlapipe.api.planner import Planned, Planner
from xlapipe.api.step_plan import StepPlan
from xlapipe.api.testing.goldens import Goldens
from xlapipe.expect import Expectation
from xlapipe.plans.buffers import Totals
from xlapipe.report.xla_subject import XlaSubject

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
# `file-test` and `file-test[id]` from which that name can be told.
_IS_OWN_NAME = re.compile(r"[a-z0-9_]+-[a-z0-9_.]+(\[[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\])?")
_LONGEST_NAME = 150

# Values that a failed assertion lists.
_LISTED = 5


class PlanUnderTest(StepPlan):
    """What `xlapipe_plan` returns: a `StepPlan` whose false answers pytest explains.

    Attributes:
      dump: all captured files.
    """

    def __init__(self, planned: Planned, test: "PlansOfTest") -> None:
        self.dump = planned.written.dump
        super().__init__(XlaSubject(planned.written.dump), planned.expectations)
        self._planned = planned
        self._test = test

    def __repr__(self) -> str:
        manifest = self.dump.manifest
        about = ", ".join(filter(None, (manifest.target, self.dump.tuning_word)))
        return f"<plan of {manifest.workload} for {about}>"

    @property
    def totals(self) -> Totals:
        """As of `StepPlan`; a failed assertion about them lists the largest values at the peak."""
        rows = [
            f"  {value.counted_bytes:,} B, {value.shape}, {value.source or value.label}"
            for value in self.peak.values[:_LISTED]
        ]
        text = "\n".join(("the largest values at the peak of memory:", *rows))
        self._test.recorded(Answer(False, repr(self)[1:-1], text))
        return super().totals

    def _answer(self, *expectations: Expectation) -> Answer:
        return self._test.recorded(super()._answer(*expectations))

    def matches_golden(self) -> Answer:
        """Whether the plan equals the golden in `hlo_dumps/` next to the test file.

        Where a lock may have been predicted, the untuned plan is compiled and compared: predicted
        locks change when more results are known.

        Raises:
          DumpError: the golden is damaged, or was made by a newer xlapipe.
        """
        untuned = self._planned.untuned()
        if untuned is not self._planned.written:
            self._test.on_plan(untuned.compiled_at is None)
        return self._test.recorded(self._test.goldens.matches(untuned.dump))


@dataclass(frozen=True, kw_only=True)
class PlansOfTest(Planner[PlanUnderTest]):
    """Makes the plans of one test; the value of the fixture `xlapipe_plan`.

    Attributes:
      file, test: file and name of the test.
      on_plan: called for each plan, with True if it was compiled, False if it was in the cache.
      on_note: called for each note on the step of a plan, such as an argument that is not used.
      answers: all answers so far, to explain a failed assertion.
    """

    file: Path
    test: str
    goldens: Goldens
    on_plan: Callable[[bool], None]
    on_note: Callable[[str], None]
    answers: list[Answer] = field(default_factory=list)

    __call__ = Planner.plan

    def _default_name(self, function: str) -> str:
        return name_of_test(self.file, self.test)

    def _plan(self, planned: Planned) -> PlanUnderTest:
        self.on_plan(planned.written.compiled_at is None)
        for note in planned.written.dump.manifest.notes_on_step:
            self.on_note(note)
        return PlanUnderTest(planned, self)

    def recorded(self, answer: Answer) -> Answer:
        """The answer, which a failed assertion may be about."""
        self.answers.append(answer)
        return answer


def name_of_test(file: Path, test: str) -> str:
    """The name of the folder of a test's goldens; no two tests of a folder have the same.

    A digest follows where the name of another test may differ in case alone, or in characters that
    a folder's name should not have.

    >>> name_of_test(Path("test_step.py"), "test_decode[bf16-8]")
    'test_step-test_decode-bf16-8'
    >>> name_of_test(Path("test_step.py"), "test_decode[bf16, 8]")
    'test_step-test_decode-bf16-8-5d371ef0'
    """
    whole = f"{file.stem}-{test}"
    name = _NOT_IN_A_NAME.sub("-", whole).strip("-.")
    if _IS_OWN_NAME.fullmatch(whole) and len(whole) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{sha256(whole.encode(errors='surrogatepass')).hexdigest()[:8]}"


def explanations(answers: Sequence[Answer], message: str) -> list[str]:
    """The explanations of the false answers that a failed assertion's message contains.

    Args:
      message: empty if pytest does not rewrite assertions; then the last false answer is explained.
    """
    false = [answer for answer in answers if not answer.holds]
    shown = [answer for answer in false if repr(answer) in message] if message else false[-1:]
    return [str(answer) for answer in dict.fromkeys(shown)]
