"""Compiles of one job in differing processes, and the first stage at which two of them part.

A fresh process has other addresses (ASLR), the hash seed of Python is another one, and XLA's thread
pools have another number of threads. None of these may change a plan; a pass that iterates over a
hash table of pointers can make them do so.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from xlapipe.compile.job import Job, Process
from xlapipe.compile.pipeline import CompiledDump, compile_dump
from xlapipe.devices.platforms.dump_files import STAGE_TITLES
from xlapipe.dump.manifest import MANIFEST
from xlapipe.dump.normal_form.plan import differences


@dataclass(frozen=True)
class Parting:
    """The first difference of a compile from the first one.

    Attributes:
      number: number of the compile, from 2.
      stage: the first file of XLA's that differs, in the order of the compiler's stages.
      line: line of that file, from 1.
      first, other: the line in both compiles; empty after the end of a text.
      plan_differs: whether the plans differ also in their normal form, i.e. not only in names.
    """

    number: int
    process: Process
    stage: str
    line: int
    first: str
    other: str
    plan_differs: bool


@dataclass(frozen=True)
class Repeated:
    """The result of compiling a job several times.

    Attributes:
      processes: what differed between the compiles, in order.
      parting: None if all compiles are equal to the last byte.
    """

    processes: tuple[Process, ...]
    first: CompiledDump
    parting: Parting | None


def processes(count: int) -> tuple[Process, ...]:
    """Hash seeds and thread counts for `count` compiles: all cores, one, two, …"""
    cores = len(os.sched_getaffinity(0))
    threads = [cores, *range(1, cores + 1)]
    return tuple(
        Process(hash_seed=7919 * number, threads=threads[number % len(threads)])
        for number in range(count)
    )


def compile_repeatedly(
    job: Job, count: int, *, on_done: Callable[[Process], None] = lambda process: None
) -> Repeated:
    """Compiles `job` in `count` fresh processes, one after another; ends at the first difference.

    Raises:
      XlapipeError: a compile failed.
    """
    varied = processes(count)
    first = compile_dump(replace(job, process=varied[0]), Path.cwd())
    on_done(varied[0])
    for number, process in enumerate(varied[1:], start=2):
        other = compile_dump(replace(job, process=process), Path.cwd())
        on_done(process)
        parting = first_parting(first, other, number, process)
        if parting is not None:
            return Repeated(varied[:number], first, parting)
    return Repeated(varied, first, None)


def first_parting(
    first: CompiledDump, other: CompiledDump, number: int, process: Process
) -> Parting | None:
    """The first stage and line at which two compiles of one job differ; None if they do not."""
    others = sorted({*first.files, *other.files} - STAGE_TITLES.keys() - {MANIFEST})
    for name, title in {**STAGE_TITLES, **dict(zip(others, others, strict=True))}.items():
        texts = tuple(files.get(name, b"") for files in (first.files, other.files))
        if texts[0] != texts[1]:
            line, a, b = _first_line(*(text.decode(errors="replace") for text in texts))
            return Parting(
                number=number,
                process=process,
                stage=title,
                line=line,
                first=a,
                other=b,
                plan_differs=bool(differences(first.normal, other.normal, name="")),
            )
    return None


def _first_line(a: str, b: str) -> tuple[int, str, str]:
    """Number and texts of the first line that differs."""
    lines_a, lines_b = a.split("\n"), b.split("\n")
    for number, (line_a, line_b) in enumerate(zip(lines_a, lines_b, strict=False), start=1):
        if line_a != line_b:
            return number, line_a.strip(), line_b.strip()
    shorter = min(len(lines_a), len(lines_b))
    rest_a, rest_b = lines_a[shorter:], lines_b[shorter:]
    return shorter + 1, (rest_a or [""])[0].strip(), (rest_b or [""])[0].strip()
