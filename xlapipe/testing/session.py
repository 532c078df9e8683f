"""One test's `xlapipe_plan`: lower here, compile in a child or take from the cache, ask."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xlapipe.compiling.child_process import Job
from xlapipe.compiling.dump_cache import DumpCache
from xlapipe.errors import XlapipeError
from xlapipe.lowering.lowered_program import LoweredProgram
from xlapipe.testing.answer import Answer
from xlapipe.testing.goldens import Goldens
from xlapipe.testing.plan import PlanUnderTest
from xlapipe.testing.plan_arguments import Donate, job_of, name_of_test, workload_of
from xlapipe.workload import Workload


@dataclass(frozen=True, kw_only=True)
class PlansOfTest:
    """Makes plans for one test; the fixture `xlapipe_plan` is one.

    Attributes:
      file, test: where the test is.
      root: source paths are made relative to it.
      target: where the test names none.
      on_plan: is told whether each plan was compiled, or taken from the cache.
      answers: every answer that was given, for a failed assertion to explain.
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
        """The plan of a step for a GPU that need not be here.

        Args:
          step: a function, jitted or not, or a Workload, which has everything else already.
          args: one pytree per positional argument; of arrays, only shape and dtype are taken.
          donate: positions or names of donated parameters; a jitted step has its own.
          target: a name of `xlapipe targets`, or the path of a target config.
          gemm: `auto`, `cublas` or `triton`.
          name: of the golden; by default the test's.
          options: XLA options (`xla_*`).
          mesh: as in Workload.
          in_specs: as in Workload.
          out_specs: as in Workload.
          topology: hosts and GPUs that the mesh is laid over, `8x8`; by default as few as it asks
            for.
          autotune_lock: a device's autotune results, for the plan that the device would make.
          timeout: seconds.

        Raises:
          XlapipeError: bad input, or a compile that failed. What the step raises passes through.
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
            # The message says it all: of the frames, only the test's own are of use.
            raise error.with_traceback(None) from None

    def _plan(self, workload: Workload, job: Job) -> PlanUnderTest:
        assert job.target is not None  # `attached` is refused
        program, same = _lowered(workload, job.target.config_text)
        kept = self.cache.dump_of(job, program, folder=self.root)
        self.on_plan(kept.compiled)
        return PlanUnderTest(
            kept.dump,
            replace(kept.dump.program, same_buffer=same),
            tuple(workload.expectations),
            kept.key,
            self.goldens,
            self._noted,
        )

    def _noted(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        return answer


def _lowered(workload: Workload, config_text: str) -> tuple[LoweredProgram, Mapping[str, str]]:
    from xlapipe.lowering.in_process import lower_in_test, same_buffers  # imports jax

    return lower_in_test(workload, config_text), same_buffers(workload)


def explanations(answers: Sequence[Answer], said: str) -> list[str]:
    """What the false answers in a failed assertion's message explain.

    Args:
      said: the message; empty where assertions are not rewritten, and the last answer counts.
    """
    false = [answer for answer in answers if not answer.holds]
    shown = [answer for answer in false if repr(answer) in said] if said else false[-1:]
    return [str(answer) for answer in dict.fromkeys(shown)]
