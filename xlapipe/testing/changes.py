"""What two dumps of one workload differ in, in sentences, before any text is compared."""

from collections.abc import Iterator
from dataclasses import asdict

from xlapipe.dump import Dump
from xlapipe.plan.donation import donations
from xlapipe.report.figures import gemm_counts


def changes(golden: Dump, found: Dump) -> Iterator[str]:
    """Sentences about versions, bytes, donations and gemms; nothing where these are the same."""
    for package, version in golden.manifest.versions.items():
        here = found.manifest.versions.get(package)
        if here != version:
            yield f"{package} was {version}, is {here}"
    totals = asdict(found.plan.totals)
    for name, before in asdict(golden.plan.totals).items():
        after = totals[name]
        if after != before:
            yield f"{name} {after - before:+,} B: was {before:,}, is {after:,}"
    rows = {row.path: row for row in donations(found.program)}
    for row in donations(golden.program):
        now = rows.get(row.path)
        if now is None:
            yield f"{row.path} is no longer donated"
        elif (now.outcome, now.output) != (row.outcome, row.output):
            yield f"{row.path} was {row.outcome}, is {now.outcome}: {now.reason or now.output}"
    before_gemms, after_gemms = gemm_counts(golden.plan), gemm_counts(found.plan)
    for backend in sorted(before_gemms.keys() | after_gemms.keys()):
        before, after = before_gemms.get(backend, 0), after_gemms.get(backend, 0)
        if before != after:
            yield f"gemms on {backend}: was {before}, is {after}"
