"""Compares the predicted order of the variants of a step with the measured one: tables as Markdown.

    python tests/gpu/time_zoo/compare_orders.py

Plans that ran are in the zoo's records and the goldens; the others have predicted
locks, and their times were measured with the plans that the GPU tuned. The regret is by how much
the variant that is predicted fastest takes longer than the fastest one, as measured.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

from compare import RECORDS, compared
from compare_goldens import recorded

from xlapipe.devices.targets.device import device_of_target
from xlapipe.dump.readers import read_path
from xlapipe.files.contents import read_packed
from xlapipe.files.typed_data import typed
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.run.calibration.record import members, write_program
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import predict
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.interval import probability_faster, shipped_errors

# Programs of the first zoo by step. Where variants are batches, times are of one of their items.
ZOO = {
    "policies, 6 layers scanned": ("transformers/scanned_", "dots attention nothing everything"),
    "policies, 3 layers unrolled": ("transformers/unrolled_f32_", "everything dots nothing"),
    "loss, whole or in chunks": ("losses/", "cross_entropy cross_entropy_chunks"),
    "experts, dense or of a capacity": ("mixtures_of_experts/", "dense capacity"),
    "types of a ResNet": ("convolutional/residual_", "bf16 f32"),
    "batches of decoding, per sequence": ("inference/decode_", "1 16 128"),
    "batches of a perceptron, per row": ("products/mlp_", "1 4 64 2048"),
}
GOLDENS = (
    ("h100_sxm", "qwen3-generate", "qwen3-generate-persistent"),
    ("h100_sxm", "qwen3-prompts", "qwen3-prompts-hopper"),
    ("h100_sxm", "qwen3-step", "qwen3-step-donated"),
)


@dataclass(frozen=True)
class Variant:
    """Seconds of a step, or of one item; spreads of its kernels by kind."""

    name: str
    measured: float
    predicted: float
    spreads: Mapping[str, float]


def regret(variants: Sequence[Variant]) -> float:
    """By how much longer the variant takes that is predicted fastest than the fastest one."""
    chosen = min(variants, key=lambda v: v.predicted)
    return chosen.measured / min(v.measured for v in variants) - 1


def timed_groups() -> Iterator[tuple[str, list[Variant]]]:
    """Spans of programs in the zoo and of goldens, with the plans that ran."""
    programs = {program.name: program for program in compared("zoo")}
    for title, (prefix, endings) in ZOO.items():
        variants = []
        for name in endings.split():
            program, items = programs[prefix + name], int(name) if name.isdigit() else 1
            seconds = program.span_seconds / items, program.counted_seconds / items
            variants.append(Variant(name, *seconds, program.prediction.spreads))
        yield title, variants
    for target, *names in GOLDENS:
        variants = []
        for name, opened in recorded(target):
            if name in names and opened.time_record and opened.prediction:
                span = opened.time_record.span_seconds
                prediction = opened.prediction
                variants.append(Variant(name, span, prediction.span_seconds, prediction.spreads))
        yield f"{names[0]}, {target}", variants


def compiled_groups() -> Iterator[tuple[str, list[Variant]]]:
    """Calls of steps whose plans were compiled again: spans of predicted locks."""
    plans = json.loads((RECORDS / "orders.json").read_text(encoding="utf-8"))["plans"]
    speeds, calibration = device_of_target("h200"), shipped_calibration("h200")
    assert speeds is not None
    assert calibration is not None
    groups: dict[str, list[Variant]] = {}
    files = members(read_packed(RECORDS / "orders.plans.tar.xz"))
    for name, entry in plans.items():
        with tempfile.TemporaryDirectory() as folder:
            write_program(files, name, Path(folder))
            costs = tuple(StatedCost(**cost) for cost in entry.get("stated_costs", ()))
            codes = tuple(typed(KernelCode, code) for code in entry.get("kernel_codes", ()))
            plan = read_path(Path(folder))
            plan = replace(plan, stated_costs=costs, kernel_codes=codes)
            cost = step_cost(plan, speeds)
            assert cost is not None
            prediction = predict(plan, cost, calibration)
            predicted = prediction.span_seconds / entry.get("steps", 1)
            measured = entry["measured_seconds"]
            variant = Variant(entry["variant"], measured, predicted, prediction.spreads)
            groups.setdefault(name.partition("/")[0], []).append(variant)
    yield from groups.items()


def _ms(seconds: float) -> str:
    """Milliseconds with four digits that count."""
    return f"{1e3 * seconds:.{max(0, -math.floor(math.log10(seconds)))}f}"


def row(title: str, variants: Sequence[Variant]) -> str:
    """A row of the table; each variant on a line of its own to the standard error."""
    for v in sorted(variants, key=lambda v: v.measured):
        times = f"measured {_ms(v.measured)} ms, predicted {_ms(v.predicted)}"
        print(f"{title}: {v.name}: {times}", file=sys.stderr)
    fastest = min(variants, key=lambda v: v.measured)
    chosen = min(variants, key=lambda v: v.predicted)
    apart = [
        (a.measured < b.measured) == (a.predicted < b.predicted)
        for a, b in combinations(variants, 2)
        if max(a.measured, b.measured) >= 1.03 * min(a.measured, b.measured)
    ]
    cells = [title, f"{len(variants)}"]
    for v in (fastest, chosen):
        cells += [v.name, _ms(v.measured), _ms(v.predicted)]
    cells += [f"{regret(variants):.1%}".replace("%", " %"), f"{sum(apart)} of {len(apart)}"]
    return f"| {' | '.join(cells)} |"


def probability_table(groups: Sequence[tuple[str, Sequence[Variant]]]) -> Iterator[str]:
    """How often the variant of a pair that is predicted to be faster is, by the probability."""
    errors = shipped_errors()
    pairs = []
    for _, variants in groups:
        for a, b in combinations([v for v in variants if v.predicted], 2):
            first, second = sorted((a, b), key=lambda v: v.predicted)
            sides = ((v.predicted, v.spreads) for v in (first, second))
            stated = probability_faster(*sides, errors)
            pairs.append((stated, first.measured < second.measured))
    yield "| probability | pairs | mean | right |"
    yield "|---|--:|--:|--:|"
    for low, high in pairwise((0.5, 0.7, 0.9, 0.97, 1.01)):
        own = [pair for pair in pairs if low <= pair[0] < high]
        mean, right = (sum(column) / max(1, len(own)) for column in zip(*own, strict=True))
        name = f"{low:.0%} to {min(high, 1):.0%}"
        yield f"| {name} | {len(own)} | {mean:.1%} | {right:.1%} |".replace("%", " %")


def main() -> None:
    ms = "measured, ms | predicted, ms"
    print(
        f"| step | variants | fastest | {ms} | predicted fastest | {ms} | regret | pairs in order |"
    )
    print("|---|--:|---|--:|--:|---|--:|--:|--:|--:|")
    regrets = []
    for groups in (timed_groups(), compiled_groups()):
        for title, variants in groups:
            print(row(title, variants), flush=True)
            regrets.append(regret(variants))
    within = sum(value <= 0.03 for value in regrets)
    print(f"\nRegret within 3 %: {within} of {len(regrets)} steps.")


if __name__ == "__main__":
    main()
