"""Published runs beside what is predicted for a program with the same shapes."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from xlapipe.devices.targets.network import network_named
from xlapipe.registry import WorkloadReference
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.study import study_of

HERE = Path(__file__).parent
RECORDS, PREDICTED = HERE / "records.toml", HERE / "predicted.json"


@dataclass(frozen=True)
class Run:
    """A run as published; `records.toml` says what each field is."""

    name: str
    field: str
    source: str
    commit: str
    date: str
    gpu: str
    hosts: int
    network: str
    software: str
    figure: float
    unit: str
    work: float
    program: str
    options: str
    args: Mapping[str, Any]
    held_out: bool
    model: str = ""
    assumed: str = ""

    @property
    def seconds(self) -> float:
        """Published seconds of one step."""
        return self.figure * self.work if self.unit in ("s", "ms") else self.work / self.figure


@dataclass(frozen=True)
class Predicted:
    """Seconds of one step, its interval, and seconds of kernels by kind."""

    seconds: float
    low: float
    high: float
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
    def within(self) -> bool:
        """Whether the published figure is in the stated interval."""
        return self.predicted.low <= self.run.seconds <= self.predicted.high


def runs() -> tuple[Run, ...]:
    return tuple(Run(**table) for table in _records()["runs"])


def _records() -> dict[str, Any]:
    return tomllib.loads(RECORDS.read_text(encoding="utf-8"))


def compared() -> tuple[Compared, ...]:
    """Runs that have a recorded prediction, in the order of the records."""
    predicted = json.loads(PREDICTED.read_text(encoding="utf-8"))
    return tuple(
        Compared(run, Predicted(**predicted[run.name])) for run in runs() if run.name in predicted
    )


def compile_and_predict(run: Run) -> Predicted:
    """Compile the program of a run for its GPUs, none of which is needed, and predict its step."""
    import xlapipe

    tables = _records()
    args = {**tables["models"].get(run.model, {}), **run.args}
    gpus = args.get("data", 1) * args.get("fsdp", 1)
    # The last changes no plan, and saves most of the time of compiling.
    args["options"] = tables["options"][run.options] | {"xla_backend_optimization_level": 0}
    reference = WorkloadReference(
        "published", f"tests.published.{run.program}", args, HERE.parents[1]
    )
    topology = f"{run.hosts}x{gpus // run.hosts}"
    plan = xlapipe.plan(reference, target=run.gpu, topology=topology, gemm="cublas")
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
        {kind: _rounded(seconds) for kind, seconds in kinds.most_common(8)},
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def median_error(items: Iterable[Compared]) -> float:
    """Median of the magnitudes."""
    return median(abs(item.error) for item in items)
