"""The fixture `xlapipe_plan` of one test: lowers in this process, compiles or uses the cache."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlapipe.api.answer import Answer
from xlapipe.api.planner import Planned, Planner
from xlapipe.api.testing.goldens import Goldens
from xlapipe.api.testing.plan import PlanUnderTest
from xlapipe.compile.dump_cache import DumpCache
from xlapipe.dump.dump import Dump

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class PlansOfTest(Planner[PlanUnderTest]):
    """Makes the plans of one test; the value of the fixture `xlapipe_plan`.

    Attributes:
      file, test: file and name of the test.
      root: source paths are relative to it.
      target: default for plans without one.
      on_plan: called for each plan, with True if it was compiled, False if it was in the cache.
      on_note: called for each note on the step of a plan, such as an argument that is not used.
      answers: all answers so far, to explain a failed assertion.
    """

    file: Path
    test: str
    root: Path
    target: str
    cache: DumpCache
    goldens: Goldens
    on_plan: Callable[[bool], None]
    on_note: Callable[[str], None]
    answers: list[Answer] = field(default_factory=list)

    __call__ = Planner.plan

    def _default_name(self, step: Any) -> str:
        return name_of_test(self.file, self.test)

    @property
    def _default_target(self) -> str:
        return self.target

    @property
    def _cache(self) -> DumpCache:
        return self.cache

    @property
    def _folder(self) -> Path:
        return self.root

    def _plan(self, planned: Planned) -> PlanUnderTest:
        cached = planned.cached
        self.on_plan(cached.compiled)

        def golden_dump() -> Dump:
            compiled = planned.untuned()
            if compiled is not cached:
                self.on_plan(compiled.compiled)
            return compiled.dump

        for note in cached.dump.manifest.notes_on_step:
            self.on_note(note)
        return PlanUnderTest(
            cached.dump,
            planned.program,
            planned.expectations,
            key=cached.key,
            goldens=self.goldens,
            golden_dump=golden_dump,
            record=self._record,
        )

    def _record(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        return answer


def name_of_test(file: Path, test: str) -> str:
    """The name of the folder of a test's goldens.

    >>> name_of_test(Path("test_step.py"), "test_decode[bf16, 8]")
    'test_step-test_decode-bf16-8'
    """
    return _NOT_IN_A_NAME.sub("-", f"{file.stem}-{test}").strip("-.")


def explanations(answers: Sequence[Answer], message: str) -> list[str]:
    """The explanations of the false answers that a failed assertion's message contains.

    Args:
      message: empty if pytest does not rewrite assertions; then the last false answer is explained.
    """
    false = [answer for answer in answers if not answer.holds]
    shown = [answer for answer in false if repr(answer) in message] if message else false[-1:]
    return [str(answer) for answer in dict.fromkeys(shown)]
