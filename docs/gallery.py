"""Adds to the site a gallery of real reports, made of the dumps in hlo_dumps/ when it is built."""

import posixpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from xlapipe.inductor.open_path import open_path
from xlapipe.plans.occupancy import Role
from xlapipe.plans.peak import peak_of
from xlapipe.report import units
from xlapipe.report.html_page import render_page
from xlapipe.report.xla_subject import XlaSubject

# Folders of hlo_dumps/: a report of one dump, or a comparison of two; and what it shows.
_REPORTS = (
    (
        "qwen3-decode",
        ("qwen3-decode/h100_sxm-auto-tuned-jax0.12.0.1",),
        "one token of Qwen3 for a batch of sequences; the caches are updated in place",
    ),
    (
        "qwen3-train",
        ("qwen3-train/h200-1x8-cublas-jax0.12.0.1",),
        "a training step over eight GPUs: loops, collectives, optimizer state in place",
    ),
    (
        "fsdp-mlp",
        ("fsdp-mlp/h100_sxm-1x2-auto-tuned-jax0.12.0.1",),
        "fully sharded training on two GPUs; weights are gathered while products run",
    ),
    (
        "float8-linear-step",
        ("float8-linear-step/h100_sxm-auto-tuned-jax0.12.0.1",),
        "a float8 linear layer with delayed scaling",
    ),
    (
        "donation",
        ("qwen3-step/h200-cublas-jax0.12.0.1", "qwen3-step-donated/h200-cublas-jax0.12.0.1"),
        "a comparison: the same step without and with a donated cache",
    ),
)
_FOLDER = "gallery"
_HEADING = """# Gallery

Reports of the repository's own dumps, as `xlapipe report` writes them: each is one file without
requests to other hosts. They are regenerated whenever these pages are built. In CI, keep such files
as artefacts, or open `hlo_dumps/` of an artefact with `xlapipe report DIR`.

| | report | program | temp | total |
|---|---|---|---|---|
"""
# Pixels of a thumbnail: memory downwards, the schedule to the right.
_WIDTH, _HEIGHT = 220, 110
_COLORS = {
    Role.PARAMETER: "#9aa5b1",
    Role.ALIAS: "#7aa874",
    Role.OUTPUT: "#d9b44a",
    Role.TEMP: "#5b84b1",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of docs/."""
    dumps = Path(config.config_file_path).parent / "hlo_dumps"
    rows = []
    for name, folders, about in _REPORTS:
        reported = [
            XlaSubject(open_path(dumps / folder), given_name=f"hlo_dumps/{folder}")
            for folder in folders
        ]
        page = render_page(reported)
        path = posixpath.join(_FOLDER, f"{name}.html")
        files.append(File.generated(config, path, content=page.encode(errors="replace")))
        thumbnail = posixpath.join(_FOLDER, f"{name}.svg")
        files.append(File.generated(config, thumbnail, content=_thumbnail(reported[-1])))
        rows.append(f"| ![memory map of {name}]({thumbnail}) {_row(name, path, about, reported)}")
    content = _HEADING + "\n".join(rows) + "\n"
    files.append(File.generated(config, "gallery.md", content=content))
    return files


def _row(name: str, path: str, about: str, dumps: list[XlaSubject]) -> str:
    totals = [dump.plan.totals for dump in dumps]
    temp = " → ".join(units.exact(total.temp_bytes) for total in totals)
    total = " → ".join(units.exact(total.total_allocation_bytes) for total in totals)
    return f"| [{name}]({path}) | {about} | {temp} | {total} |"


def _thumbnail(opened: XlaSubject) -> str:
    """The memory map of a plan as a small picture: every value that is at least a pixel high."""
    occupancy = peak_of(opened.program).occupancy
    allocations = [item for item in opened.plan.allocations if item.size_bytes]
    scale = _HEIGHT / sum(item.size_bytes for item in allocations)
    step, top = _WIDTH / (occupancy.last_position + 1), 0.0
    parts = []
    for allocation in allocations:
        for value in allocation.values:
            live = occupancy.alive.get(value.name)
            color = _COLORS.get(occupancy.role(allocation, value))
            height = value.size_bytes * scale
            if live is None or color is None or height < 1:
                continue
            x, width = live.start * step, (live.end + 1 - live.start) * step
            y = top + value.offset_bytes * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'fill="{color}" stroke="#fff" stroke-width=".3"/>'
            )
        top += allocation.size_bytes * scale
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'
