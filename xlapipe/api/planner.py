"""Plans of steps that this process lowers: `xlapipe.plan` and the pytest fixture, one signature."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from xlapipe.api.plan_arguments import Donate, job_of, workload_of
from xlapipe.compile.job import Job
from xlapipe.compile.messages import LoweredProgram
from xlapipe.compile.pipeline import CompiledDump, compile_dump, write_new
from xlapipe.compile.tuning import Tuned
from xlapipe.devices.environment.machine import hide_missing_gpu
from xlapipe.devices.environment.scratch import Scratch, cache_folder
from xlapipe.errors import XlapipeError
from xlapipe.expect import Expectation
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload

PlanT = TypeVar("PlanT")
_NUMBERS = count(1)


@cache
def _dumps() -> Scratch:
    """Where the dumps of this process's plans are."""
    return Scratch("plans-")


@dataclass(frozen=True)
class Planned:
    """A step that was compiled, or whose plan was in the cache.

    Attributes:
      written: its dump, in a folder that is removed when this process ends.
      untuned: compiles the step untuned if its tuning may have been predicted.
    """

    written: CompiledDump
    expectations: Sequence[Expectation]
    untuned: Callable[[], CompiledDump]


@dataclass(frozen=True, kw_only=True)
class Planner(ABC, Generic[PlanT]):
    """Compiles steps, unless a cache holds their plans.

    Attributes:
      root: where the compiling process runs, and what source paths are relative to; None for the
        current folder.
      target: of plans that name none; None for what the project states.
      cache: folder of earlier compiles; None for that of this user.
    """

    root: Path | None = None
    target: str | None = None
    cache: Path | None = None

    @abstractmethod
    def _default_name(self, function: str) -> str:
        """The name of a step by that of its function."""

    @abstractmethod
    def _plan(self, planned: Planned) -> PlanT: ...

    def plan(
        self,
        step: Workload | WorkloadReference | str | Callable[..., Any],
        *args: Any,
        donate: Donate | None = None,
        target: str | Path | None = None,
        gemm: str = "auto",
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        mesh: Mapping[str, int] | None = None,
        in_specs: Any = None,
        out_specs: Any = None,
        carry: Mapping[str, str | None] | None = None,
        topology: str | None = None,
        tuning: str | Path | None = None,
        timeout: float | None = None,
    ) -> PlanT:
        """Compile a step for a GPU or TPU that need not be attached, and return XLA's plan.

        A step that was compiled before, and has not changed, comes from a cache
        (`$XDG_CACHE_HOME/xlapipe`, under pytest its own).

        Args:
          step: a function, jitted or not; or a Workload, or the name of one as on the command
            line, which take no other arguments here.
          args: one pytree per positional argument; only shape and dtype of arrays are used.
          donate: positions or names of donated parameters; not for a jitted step.
          target: a name of `xlapipe targets`, or the path of a target config; default: that of
            `[tool.xlapipe]` in pyproject.toml, else `h200`; in a test `--xlapipe-target`.
          gemm: `auto`, `cublas` or `triton`.
          name: name of the step, in messages and reports; default: the function's name; in a test
            the test's name, which names the golden.
          options: XLA options (`xla_*`).
          mesh: see Workload.
          in_specs: see Workload.
          out_specs: see Workload.
          carry: see Workload.
          topology: hosts × GPUs per host, e.g. `8x8`; default: from the mesh.
          tuning: a file with a device's autotune results; `none` for XLA's defaults; `auto` for
            results that the device's tuner is likely to give. Default: `none` if `[tool.xlapipe]`
            in pyproject.toml states `untuned = true`, else `auto`.
          timeout: in seconds.

        Raises:
          XlapipeError: bad input or a failed compile. Exceptions of the step are not caught.
        """
        __tracebackhide__ = True
        root = self.root or Path.cwd()
        try:
            workload = workload_of(
                step,
                args,
                default_name=self._default_name,
                name=name,
                donate=donate,
                options=options,
                mesh=mesh,
                in_specs=in_specs,
                out_specs=out_specs,
                carry=carry,
            )
            make_job = partial(
                job_of,
                workload,
                target=target or self.target,
                gemm=gemm,
                topology=topology,
                project=root,
                timeout=timeout,
            )
            job = make_job(tuning=tuning)
            written = self._written(job, lowered_here(workload, job), root)

            def compile_untuned() -> CompiledDump:
                if job.known_results is None:
                    return written
                plain = make_job(tuning=Tuned.NONE)
                return self._written(plain, lowered_here(workload, plain), root)

            return self._plan(Planned(written, workload.expectations, compile_untuned))
        except XlapipeError as error:
            # The message is complete; xlapipe's own frames would only hide the caller's line.
            raise error.with_traceback(None) from None

    def _written(self, job: Job, program: LoweredProgram, root: Path) -> CompiledDump:
        cache = self.cache or cache_folder("compiles")
        compiled = compile_dump(replace(job, program=program, cache_folder=cache), root)
        return write_new(compiled, _dumps().path / f"{next(_NUMBERS)}")


def lowered_here(workload: Workload, job: Job) -> LoweredProgram:
    """The workload lowered in this process.

    Raises:
      WorkloadError: the workload does not fit the function; what the function raises passes.
    """
    from xlapipe.compile.lowering.in_process import lower_in_test  # imports jax

    hide_missing_gpu()
    assert job.target is not None  # `job_of` refuses `attached`
    return lower_in_test(
        workload, job.target.config_text, platform=job.platform, topology=job.topology
    )
