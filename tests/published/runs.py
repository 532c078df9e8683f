"""Published runs beside what is predicted for a program with the same shapes."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from math import exp, hypot, log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from xlapipe.devices.targets.network import network_named
from xlapipe.registry import WorkloadReference
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.study import study_of

if TYPE_CHECKING:
    from xlapipe.api.step_plan import StepPlan

HERE = Path(__file__).parent
# The same steps of GPT 126M on the same GPUs were 1, 12 and 14 % faster with the software of half a
# year later: 1.64 times the root of the mean square of the logarithms, for nine of ten runs.
_SOFTWARE = 0.16
RECORDS, PREDICTED = HERE / "records.toml", HERE / "predicted.json"
PICTURE = HERE.parents[1] / "docs/images/published.svg"


@dataclass(frozen=True)
class Run:
    """A run as published; `records.toml` says what each field is."""

    source: str
    commit: str
    date: str
    software: str
    field: str
    name: str
    gpu: str
    hosts: int
    network: str
    figure: float
    args: Mapping[str, Any]
    unit: str = "s"
    work: float = 1
    program: str = "transformer:transformer"
    model: str = ""
    options: str = "none"
    assumed: str = ""
    held_out: bool = False

    @property
    def seconds(self) -> float:
        """Published seconds of one step."""
        return self.figure * self.work if self.unit in ("s", "ms") else self.work / self.figure

    @property
    def topology(self) -> str:
        """Hosts x GPUs of one."""
        return f"{self.hosts}x{self.args.get('data', 1) * self.args.get('fsdp', 1) // self.hosts}"

    @property
    def plan_key(self) -> str:
        """Runs for which this is the same have one plan."""
        parts = (self.program, self.model, self.options, self.gpu, self.topology, self.network)
        return json.dumps([*parts, self.args], sort_keys=True)


@dataclass(frozen=True)
class Predicted:
    """Seconds of one step, its interval, the compiling jax, and seconds by kind of kernel."""

    seconds: float
    low: float
    high: float
    jax: str
    kinds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    run: Run
    predicted: Predicted

    @property
    def error(self) -> float:
        """Relative: 0.1 is predicted 10 % too long."""
        return self.predicted.seconds / self.run.seconds - 1

    @property
    def interval(self) -> tuple[float, float]:
        """The stated interval, and the scatter by software, as independent."""
        middle = self.predicted.seconds
        below = hypot(log(middle / self.predicted.low), _SOFTWARE)
        above = hypot(log(self.predicted.high / middle), _SOFTWARE)
        return middle * exp(-below), middle * exp(above)

    @property
    def within(self) -> bool:
        """Whether the published figure is in the interval."""
        low, high = self.interval
        return low <= self.run.seconds <= high


def runs() -> tuple[Run, ...]:
    return tuple(
        Run(**{name: value for name, value in source.items() if name != "runs"}, **table)
        for source in _records()["sources"]
        for table in source["runs"]
    )


def _records() -> dict[str, Any]:
    return tomllib.loads(RECORDS.read_text(encoding="utf-8"))


def compared() -> tuple[Compared, ...]:
    """Runs that have a recorded prediction, the farthest off first."""
    predicted = json.loads(PREDICTED.read_text(encoding="utf-8"))
    items = [Compared(it, Predicted(**predicted[it.name])) for it in runs() if it.name in predicted]
    return tuple(sorted(items, key=lambda item: -abs(log(1 + item.error))))


def compiled(run: Run) -> "StepPlan":
    """The plan of a run's program for its GPUs, none of which is needed."""
    import xlapipe

    tables = _records()
    args = {**tables["models"].get(run.model, {}), **run.args}
    # The last changes no plan, and saves most of the time of compiling.
    options = dict(tables["options"][run.options])
    options = tables["options"].get(options.pop("like", ""), {}) | options
    args["options"] = options | {"xla_backend_optimization_level": 0}
    reference = WorkloadReference(
        "published", f"tests.published.{run.program}", args, HERE.parents[1]
    )
    return xlapipe.plan(reference, target=run.gpu, topology=run.topology, gemm="cublas")


def predict(run: Run, plan: "StepPlan") -> Predicted:
    """What is predicted for a run's step."""
    settings = PredictionSettings(network=network_named(run.network))
    prediction = study_of(plan.program, settings).prediction
    assert prediction is not None and prediction.step_seconds is not None, prediction
    assert prediction.low_seconds is not None and prediction.high_seconds is not None
    kinds: Counter[str] = Counter()
    for kernel in prediction.kernels:
        kinds[kernel.work.kind] += kernel.seconds
    return Predicted(
        _rounded(prediction.step_seconds),
        _rounded(prediction.low_seconds),
        _rounded(prediction.high_seconds),
        version("jax"),
        {kind: _rounded(seconds) for kind, seconds in kinds.most_common(8)},
    )


def compile_and_predict(run: Run) -> Predicted:
    return predict(run, compiled(run))


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def median_error(items: Iterable[Compared]) -> float:
    """Median of the magnitudes."""
    return median(abs(item.error) for item in items)
