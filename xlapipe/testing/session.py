"""The fixture `xlapipe_plan` of one test: lowers in this process, compiles or uses the cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xlapipe.compiling.dump_cache import DumpCache
from xlapipe.compiling.job import Job
from xlapipe.errors import XlapipeError
from xlapipe.front.answer import Answer
from xlapipe.front.compile_step import lowered_here
from xlapipe.front.plan_arguments import Donate, job_of, name_of_test, workload_of
from xlapipe.testing.goldens import Goldens
from xlapipe.testing.plan import PlanUnderTest
from xlapipe.workload import Workload


@dataclass(frozen=True, kw_only=True)
class PlansOfTest:
    """Makes the plans of one test; the value of the fixture `xlapipe_plan`.

    Attributes:
      file, test: file and name of the test.
      root: source paths are relative to it.
      target: default for plans without one.
      on_plan: called for each plan, with True if it was compiled, False if it was in the cache.
      answers: all answers so far, to explain a failed assertion.
    """

    file: Path
    test: str
    root: Path
    target: str
    cache: DumpCache
    goldens: Goldens
    on_plan: Callable[[bool], None]
    answers: list[Answer] = field(default_factory=list)

    def __call__(
        self,
        step: Workload | Callable[..., Any],
        *args: Any,
        donate: Donate | None = None,
        target: str | Path | None = None,
        gemm: str = "auto",
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        mesh: Mapping[str, int] | None = None,
        in_specs: Any = None,
        out_specs: Any = None,
        topology: str | None = None,
        autotune_lock: str | Path | None = None,
        timeout: float | None = None,
    ) -> PlanUnderTest:
        """Compiles a step for a GPU that need not be attached.

        Args:
          step: a function, jitted or not, or a Workload, which takes no other arguments here.
          args: one pytree per positional argument; only shape and dtype of arrays are used.
          donate: positions or names of donated parameters; not for a jitted step.
          target: a name of `xlapipe targets`, or the path of a target config.
          gemm: `auto`, `cublas` or `triton`.
          name: of the golden; default: from the test's name.
          options: XLA options (`xla_*`).
          mesh: see Workload.
          in_specs: see Workload.
          out_specs: see Workload.
          topology: hosts × GPUs per host, e.g. `8x8`; default: from the mesh.
          autotune_lock: a file with a device's autotune results.
          timeout: in seconds.

        Raises:
          XlapipeError: bad input or a failed compile. Exceptions of the step are not caught.
        """
        __tracebackhide__ = True
        try:
            workload = workload_of(
                step,
                args,
                name=name or name_of_test(self.file, self.test),
                donate=donate,
                options=options,
                mesh=mesh,
                in_specs=in_specs,
                out_specs=out_specs,
            )
            job = job_of(
                workload,
                target=target or self.target,
                gemm=gemm,
                topology=topology,
                autotune_lock=None if autotune_lock is None else Path(autotune_lock),
                timeout=timeout,
            )
            return self._plan(workload, job)
        except XlapipeError as error:
            # The message is complete; xlapipe's own frames would only hide the test's line.
            raise error.with_traceback(None) from None

    def _plan(self, workload: Workload, job: Job) -> PlanUnderTest:
        program, same = lowered_here(workload, job)
        kept = self.cache.dump_of(job, program, folder=self.root)
        self.on_plan(kept.compiled)
        return PlanUnderTest(
            kept.dump,
            replace(kept.dump.program, same_buffer=same),
            tuple(workload.expectations),
            key=kept.key,
            goldens=self.goldens,
            record=self._record,
        )

    def _record(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        return answer


def explanations(answers: Sequence[Answer], message: str) -> list[str]:
    """The explanations of the false answers that a failed assertion's message contains.

    Args:
      message: empty if pytest does not rewrite assertions; then the last false answer is explained.
    """
    false = [answer for answer in answers if not answer.holds]
    shown = [answer for answer in false if repr(answer) in message] if message else false[-1:]
    return [str(answer) for answer in dict.fromkeys(shown)]
