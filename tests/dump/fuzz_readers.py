"""Damages real files at random, and runs all that reads them, in this process.

Each try must end within 10 s of CPU time and 2 GB of memory, with a right answer or an XlapipeError
and exit code 2: no traceback, no control character on a terminal, no markup of a file in HTML.
"""

import atexit
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import xlapipe
from tests.conftest import GOLDEN_JAXLIB
from tests.dump import mutate
from tests.dump.mutate import VALUES, json_value
from tests.shared.dumps import DATA, ROOT
from xlapipe.api.plan_arguments import target
from xlapipe.cli import main
from xlapipe.compile.compile_cache import CompileCache
from xlapipe.compile.job import Job
from xlapipe.compile.messages import CompileRecord
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.autotune_lock import read_lock
from xlapipe.dump.dump import read_manifest
from xlapipe.dump.readers.profile_trace import call_intervals, kernel_events
from xlapipe.errors import XlapipeError
from xlapipe.plans.program import ArgumentLeaf, CompileFacts
from xlapipe.registry import WorkloadReference
from xlapipe.run.built_executable import read_executable

MOST_CPU_SECONDS = 10
MOST_BYTES = 2 << 30
TAG = "<xl-injected"
INJECTIONS = (
    "\x1b[2J\x1b]0;title\x07", "\u202e\u2066", f"{TAG} onerror=alert(1)>", f"</script>{TAG}>",
    f"</details>{TAG}>", "`|\n\n# heading\n", "../../../../etc/passwd", "/etc/passwd", "\ud800",
    "\x00", "\x85", "a" * 100_000, "9" * 5000, "1e999", "-1", str(10**400), "NaN", "Infinity",
    "[" * 100_000, '{"a":' * 50_000, "(" * 50_000, '"},{"',
)  # fmt: skip
MORE_VALUES = (
    *VALUES, 10**400, -(10**400), 1e-320, float("nan"), float("inf"), *INJECTIONS[:13],
    [[]] * 100_000, {str(number): number for number in range(1000)},
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """Files that belong together, and what reads them.

    Attributes:
      source: a folder, whose copy is damaged.
      damaged: pattern of the names of files that may be damaged.
      runs: by name; each gets the copy, and a folder for what it writes. It returns an exit code.
    """

    name: str
    source: Callable[[], Path]
    runs: Mapping[str, Callable[[Path, Path], int]]
    damaged: str = "*"


def command(*arguments: str) -> Callable[[Path, Path], int]:
    """A command line, in which DIR, SAME and OUT are replaced."""

    def run(folder: Path, out: Path) -> int:
        names = {"DIR": folder, "OUT": out / "page.html", "SOUND": SPECTRAL, "FILE": first(folder)}
        return main([str(names.get(argument, argument)) for argument in arguments])

    return run


def first(folder: Path) -> Path:
    """The first file of a folder."""
    return min(folder.iterdir(), default=folder)


def call(function: Callable[[Path], Any]) -> Callable[[Path, Path], int]:
    """A function of the package that gets the folder."""

    def run(folder: Path, _: Path) -> int:
        function(folder)
        return 0

    return run


SPECTRAL = ROOT / f"hlo_dumps/spectral-diffusion/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
STEP = DATA / "jaxlib-0.12.0.1/step"
CALIBRATION = min((ROOT / "xlapipe/time/predict/calibrations").iterdir())
PYPROJECT = '[tool.xlapipe.workloads]\nstep = "module:function"\nother = "a.b:c(layers=3)"\n'
_DUMP_RUNS = {
    name: command(*arguments.split())
    for name, arguments in {
        "show": "show DIR",
        "show --json": "show --json DIR",
        "show --all": "show --all DIR",
        "show --time": "show --time DIR",
        "show NAME": "show DIR params",
        "check": "check DIR",
        "diff": "diff DIR SOUND",
        "diff --json": "diff --json SOUND DIR",
        "report": "report DIR --out OUT",
        "report of two": "report SOUND DIR --out OUT",
        "diff --markdown": "diff --markdown DIR SOUND",
        "explain --plan": f"explain --plan DIR {DATA}/failures/temp_too_large.log",
    }.items()
}


def notebook(folder: Path) -> None:
    """What a notebook shows of a plan."""
    plan = xlapipe.read(folder)
    text = plan._repr_html_()
    assert TAG not in text
    _ = repr(plan), plan.figures, plan.peak, plan.donations


def source_folder() -> Path:
    """A folder that goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-source-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def copy_of(text: bytes, name: str) -> Path:
    folder = source_folder()
    (folder / name).write_bytes(text)
    return folder


@cache
def executable() -> Path:
    """A dump with an executable's bytes, which no GPU made."""
    folder = source_folder() / "built"
    shutil.copytree(SPECTRAL, folder)
    (folder / "executable.pjrt").write_bytes(b"\x08\x01" + bytes(range(256)) * 20)
    renew_digests(folder)
    return folder


def job_into(out: Path) -> Job:
    reference = WorkloadReference("step", "module:step")
    return Job(reference=reference, target=target_named("h200"), serialize=True, scratch=out)


@cache
def compile_cache() -> Path:
    """A compile cache with one result."""
    folder = source_folder()
    manifest = read_manifest(SPECTRAL)
    record = CompileRecord(
        **{item.name: getattr(manifest, item.name) for item in fields(CompileFacts)},
        target_config="config",
        seconds={"load": 1.0, "lower": 1.0, "compile": 1.0},
    )
    job = job_into(folder)
    restored = job.dump_folder
    restored.mkdir()
    for path in SPECTRAL.glob("*.txt*"):
        shutil.copy(path, restored)
    job.executable_path.write_bytes(b"code" * 100)
    CompileCache(folder / "cache").keep("key", job, record)
    return folder / "cache"


@cache
def leaves() -> tuple[ArgumentLeaf, ...]:
    """The arguments of the step whose result is in the cache."""
    return read_manifest(SPECTRAL).arguments


@cache
def restored_result() -> tuple[CompileRecord | None, dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as name:
        record = CompileCache(compile_cache()).restore("key", job_into(Path(name)), leaves())
        return record, contents(Path(name))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def restore(folder: Path, out: Path) -> int:
    """A result is restored as it was kept, or not at all."""
    own = out / "own"
    own.mkdir(exist_ok=True)
    record = CompileCache(folder).restore("key", job_into(own), leaves())
    expected, files = restored_result()
    assert record is None or record == expected, "another record"
    assert contents(own) in ({}, files), "other files"
    return 0 if record is not None else 2


def traces(folder: Path) -> None:
    for path in folder.iterdir():
        if not path.is_file() or path.is_symlink():
            raise XlapipeError("no file; fix: give one")
        content = path.read_bytes()
        kernel_events(content)
        call_intervals(content, "xlapipe_call")


def registered(folder: Path, _: Path) -> int:
    with contextlib.chdir(folder):
        return main(["list"])


READERS = (
    Reader("dump", lambda: SPECTRAL, {**_DUMP_RUNS, "read": call(notebook)}),
    Reader(
        "dump of host memory", lambda: DATA / "host_memory", {**_DUMP_RUNS, "read": call(notebook)}
    ),
    Reader(
        "XLA's files",
        lambda: STEP,
        {
            name: _DUMP_RUNS[name]
            for name in ("show", "show --json", "report", "diff", "show --time")
        },
    ),
    Reader(
        "calibration",
        lambda: copy_of(CALIBRATION.read_bytes(), "calibration.jsonl"),
        {
            "show": command("show", "SOUND", "--time", "--calibration", "FILE"),
            "show --json": command("show", "SOUND", "--time", "--json", "--calibration", "FILE"),
        },
    ),
    Reader(
        "autotune lock",
        lambda: copy_of((SPECTRAL / "autotune_lock.json").read_bytes(), "lock.json"),
        {
            "lock": call(
                lambda folder: read_lock(first(folder)).refuse_unless(where="x", jaxlib="0.11.2")
            ),
        },
    ),
    Reader(
        "target config",
        lambda: copy_of(target_named("h200").config_text.encode(), "gpu.txtpb"),
        {
            "target": call(lambda folder: target(first(folder))),
        },
    ),
    Reader(
        "log",
        lambda: DATA / "failures",
        {
            "explain": command("explain", "FILE"),
            "explain --json": command("explain", "--json", "FILE"),
            "explain --plan": command("explain", "--plan", "SOUND", "FILE"),
        },
    ),
    Reader(
        "Inductor",
        lambda: ROOT / "tests/inductor/data/torch-2.13-cpu-loop",
        {name: _DUMP_RUNS[name] for name in ("show", "show --json", "report", "diff", "check")},
    ),
    Reader(
        "executable",
        executable,
        {
            "read": call(read_executable),
        },
        damaged="*[!z]",
    ),
    Reader("compile cache", compile_cache, {"restore": restore}),
    Reader("profile", lambda: DATA / "profile", {"read": call(traces)}),
    Reader(
        "pyproject.toml",
        lambda: copy_of(PYPROJECT.encode(), "pyproject.toml"),
        {"list": registered},
    ),
)


def damage_file(path: Path, chance: random.Random, others: list[Path]) -> str:
    """Damages one file; returns how."""
    content = path.read_bytes()
    packed = content.startswith((b"\x1f\x8b", b"\xfd7zXZ"))
    kind = chance.choice(("bytes", "text", "text", "inject", "inject", "json", "json", "kind"))
    if packed and chance.random() < 0.7:
        with contextlib.suppress(OSError, EOFError, zlib.error, lzma.LZMAError):
            content = gzip.decompress(content) if content[0] == 0x1F else lzma.decompress(content)
    if kind == "json":
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            lines = content.split(b"\n")
            number = chance.randrange(len(lines))
            try:
                value = json.loads(lines[number])
            except (ValueError, RecursionError):
                kind = "inject"
            else:
                lines[number] = text_of(value, chance).encode(errors="surrogatepass")
                content = b"\n".join(lines)
        else:
            content = text_of(value, chance).encode(errors="surrogatepass")
    if kind == "bytes":
        content = mutate.wire(content, chance)
    elif kind == "text":
        content = mutate.text(content.decode(errors="surrogateescape"), chance).encode(
            errors="replace"
        )
    elif kind == "inject":
        text = content.decode(errors="surrogateescape")
        words = [match.span() for match in re.finditer(r"[\w.\-]+", text[:2_000_000])] or [(0, 0)]
        start, end = chance.choice(words)
        injected = chance.choice(INJECTIONS)
        content = (
            (text[:start] + injected + text[end:]).encode(errors="surrogatepass")
            if not (set(map(ord, text)) & set(range(0xDC80, 0xDD00)))
            else text[:start].encode(errors="surrogateescape")
            + injected.encode(errors="surrogatepass")
            + text[end:].encode(errors="surrogateescape")
        )
    elif kind == "kind":
        return other_kind(path, chance, others)
    path.write_bytes(content)
    return kind


def text_of(value: Any, chance: random.Random) -> str:
    """JSON text of a damaged value, sometimes with a key twice."""
    with patch("tests.dump.mutate.VALUES", MORE_VALUES):
        text = json.dumps(json_value(value, chance), ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.15 and text.startswith("{"):
        key = chance.choice(re.findall(r'"([^"\\]*)":', text) or [""])
        text = text[:-1] + f', "{key}": {json.dumps(chance.choice(VALUES[:10]))}' + "}"
    return text


@cache
def bomb(kind: str) -> bytes:
    """Few bytes that unpack to 5 GiB, or to 300 MiB."""
    if kind == "gz":
        member = gzip.compress(b"\0" * (256 << 20), 9, mtime=0)
        return member * 20
    if kind == "xz":
        return lzma.compress(b"\0" * (300 << 20), preset=1)
    return b"\0" * (70 << 20)


def other_kind(path: Path, chance: random.Random, others: list[Path]) -> str:
    """Puts something else in a file's place."""
    choice = chance.choice(
        ("empty", "missing", "link", "zero", "pipe", "folder", "other", "gz", "xz", "large")
    )
    path.unlink()
    if choice == "empty":
        path.touch()
    elif choice == "link":
        path.symlink_to(chance.choice(("/etc/passwd", path.name, "/nowhere")))
    elif choice == "zero":
        path.symlink_to("/dev/zero")
    elif choice == "pipe":
        os.mkfifo(path)
    elif choice == "folder":
        path.mkdir()
    elif choice == "other":
        rest = [other for other in others if other.is_file() and other != path]
        if rest:
            shutil.copy(chance.choice(rest), path)
    elif choice in ("gz", "xz", "large"):
        path.write_bytes(bomb(choice))
    return choice


def renew_digests(folder: Path) -> None:
    """States the digests of the damaged files in the manifest, as an attacker would."""
    path = folder / "manifest.json"
    if path.is_symlink() or not path.is_file():
        return
    try:
        manifest = json.loads(path.read_bytes())
        listed = manifest["files"]
        for file in folder.iterdir():
            if not file.is_file() or file.is_symlink() or file.name == "manifest.json":
                continue
            content, name = file.read_bytes(), file.name
            if name.endswith((".gz", ".xz")):
                name = name[:-3]
                opener = gzip.decompress if content.startswith(b"\x1f\x8b") else lzma.decompress
                content = opener(content) if len(content) < 1 << 20 else b""
            if name in listed or name == "executable.pjrt":
                listed[name] = hashlib.sha256(content).hexdigest()
            if name == "source_lines.json":
                rest = content.partition(b"\n")[2]
                head = content.partition(b"\n")[0]
                digest = hashlib.sha256(rest).hexdigest().encode()
                file.write_bytes(re.sub(rb"[0-9a-f]{64}", digest, head) + b"\n" + rest)
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, TypeError, KeyError, EOFError, zlib.error, lzma.LZMAError):
        pass


class _TooLongError(BaseException):
    pass


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends a try after ten seconds of CPU time, and refuses more than 2 GB."""

    def fail(*_: object) -> None:
        raise _TooLongError

    former = signal.signal(signal.SIGVTALRM, fail)
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        signal.signal(signal.SIGVTALRM, former)


@dataclass(frozen=True)
class Outcome:
    """How a try ended.

    Attributes:
      finding: what must not be; None if it ended as it must.
    """

    reader: str
    run: str
    kind: str
    code: int
    finding: str | None


def attempt(seed: int, folder: Path) -> Outcome:
    """One try; what it needs is below `folder`."""
    chance = random.Random(seed)
    reader = READERS[seed % len(READERS)]
    source, copy = reader.source(), folder / "copy"
    if reader.name == "log":
        copy.mkdir()
        logs = sorted(source.glob("*.log"))
        shutil.copy(chance.choice(logs), copy / "run.log")
    else:
        shutil.copytree(source, copy)
    files = sorted(path for path in copy.rglob(reader.damaged) if path.is_file())
    chosen = chance.sample(files, min(len(files), chance.choice((1, 1, 1, 2))))
    kinds = [damage_file(path, chance, files) for path in chosen]
    if reader.name != "compile cache" and chance.random() < 0.75:
        renew_digests(copy)
    name = chance.choice(sorted(reader.runs))
    code, finding = ended(reader.runs[name], copy, folder)
    return Outcome(reader.name, name, " and ".join(kinds), code, finding)


def ended(run: Callable[[Path, Path], int], copy: Path, out: Path) -> tuple[int, str | None]:
    """The exit code, and what must not be."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    code, finding = -1, None
    with patch("sys.stdout", streams[0]), patch("sys.stderr", streams[1]):
        try:
            with limited():
                code = run(copy, out)
        except XlapipeError:
            code = 2
        except SystemExit as error:
            finding = f"SystemExit {error.code}"
        except _TooLongError:
            finding = f"more than {MOST_CPU_SECONDS} s of CPU"
        except BaseException:  # noqa: BLE001 - any of them is a finding
            finding = traceback.format_exc(limit=-6)
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    page = out / "page.html"
    html = page.read_text() if page.exists() else ""
    finding = finding or misprinted(code, texts, html)
    return code, finding


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def misprinted(code: int, texts: list[str], html: str) -> str | None:
    """What must not be printed or written."""
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if texts[1].count("xlapipe: error: ") > 1:
        return f"more than one error: {texts[1][:2000]}"
    for text in texts:
        if "Traceback (most recent call last)" in text:
            return text[-2000:]
        if match := _CONTROL.search(text):
            return f"control character: {text[max(0, match.start() - 80) : match.end() + 20]!r}"
    if TAG in html:
        at = html.index(TAG)
        return f"markup in HTML: {html[max(0, at - 200) : at + 50]!r}"
    return None


def tries(seeds: Sequence[int], until: float, results: Path) -> None:
    """Appends the outcome of each seed to a file, as far as there is time."""
    resource.setrlimit(resource.RLIMIT_AS, (2 * MOST_BYTES, 2 * MOST_BYTES))
    with results.open("a") as lines:
        for seed in seeds:
            if time.time() > until:
                return
            lines.write(json.dumps({"seed": seed}) + "\n")
            lines.flush()
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                outcome = attempt(seed, Path(folder))
            lines.write(json.dumps({"seed": seed, **asdict(outcome)}) + "\n")


def outcomes_of(seeds: Sequence[int], until: float, results: Path) -> list[Outcome]:
    """The outcomes of seeds, each in a process that another one replaces if it is killed."""
    left = list(seeds)
    while left and time.time() < until:
        # Not forked: this process can have jax's threads.
        process = multiprocessing.get_context("spawn").Process(
            target=tries, args=(left, until, results)
        )
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        last = json.loads(results.read_text().splitlines()[-1])["seed"]
        died = Outcome(READERS[last % len(READERS)].name, "", "", -1, f"ended {process.exitcode}")
        with results.open("a") as lines:
            lines.write(json.dumps({"seed": last, **asdict(died)}) + "\n")
        left = left[left.index(last) + 1 :]
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    for row in rows:
        if row.get("finding"):
            print(f"seed {row['seed']}: {row['reader']}, {row['run']}, {row['kind']}")
            print(row["finding"], flush=True)
    return [
        Outcome(**{k: v for k, v in row.items() if k != "seed"}) for row in rows if "run" in row
    ]
