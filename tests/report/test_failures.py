"""The readers of memory failures: kind and figures of every form that XLA prints."""

import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.report.failure_logs import LOGS, NO_FAILURES, FailureLog
from xlapipe.cli import main
from xlapipe.inductor.open_path import open_path
from xlapipe.report.failure_lines import failure_lines, planned_failure
from xlapipe.report.failures.failure import MemoryFailure
from xlapipe.report.failures.read_log import last_failure, read_failures
from xlapipe.report.failures.sizes import SIZE, LoggedSize, parse_size

GIB, MIB = 2**30, 2**20


def explained(text: str) -> MemoryFailure:
    failure = last_failure(read_failures(text))
    assert failure is not None
    return failure


def figures(failure: MemoryFailure) -> FailureLog:
    return FailureLog(
        name="",
        source="",
        text="",
        kind=failure.kind,
        requested_bytes=failure.requested_bytes,
        executable_name=failure.executable_name,
        device=failure.device,
        limit_bytes=failure.limit_bytes,
        held_bytes=failure.held_bytes,
    )


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_figures_of_each_form(log: FailureLog) -> None:
    assert figures(explained(log.text)) == replace(log, name="", source="", text="")


PREFIXES = (
    "[1,0]<stderr>:",
    "  7: ",
    "[rank3]: ",
    "(worker pid=95, ip=10.0.0.1) ",
    "[pod/train-0/main] ",
    "2026-01-05T10:11:12.123456789Z stderr F ",
    "2026-01-05 10:11:12,123 - ERROR - trainer - ",
    "2026-01-05T10:11:12 - 0 - trainer - train.py:342 - WARNING :: ",
    "[2026-01-05 10:11:12] ERROR ",
    "ERROR 01-05 10:11:12 [core.py:396] ",
    "(launch pid=7) 2026-01-05 10:11:12 INFO ",
)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_prefixes_of_launchers_and_loggers_change_no_figure(log: FailureLog) -> None:
    first = LOGS.index(log) % 4
    for prefix in PREFIXES[first::4]:
        text = "".join(prefix + line for line in log.text.splitlines(keepends=True))
        assert figures(explained(text)) == replace(log, name="", source="", text=""), prefix


def in_json(line: str) -> str:
    return json.dumps({"log": line, "stream": "stderr"}) + "\n"


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_wrapped_logs_have_the_same_figures(log: FailureLog) -> None:
    lines = log.text.splitlines(keepends=True)
    wrapped = (
        log.text.replace("\n", "\r\n"),
        "".join(f"\x1b[31m{line.rstrip()}\x1b[0m\n" for line in lines),
        "".join(map(in_json, lines)),
        json.dumps({"severity": "ERROR", "jsonPayload": {"message": log.text}}) + "\n",
    )
    for text in wrapped:
        assert figures(explained(text)) == replace(log, name="", source="", text="")


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_a_log_that_is_cut_off_anywhere_has_no_other_figure(log: FailureLog) -> None:
    """A figure that is cut in two is left out."""
    known = known_sizes(log)
    inside_numbers = [match.start() for match in re.finditer(r"(?<=[\d.])[\d.KMGi]", log.text)]
    for end in inside_numbers[:: 1 + len(inside_numbers) // 12]:
        for failure in read_failures(log.text[:end]):
            sizes = {failure.requested_bytes, failure.limit_bytes, failure.held_bytes}
            assert sizes <= known, log.text[:end][-80:]


def known_sizes(log: FailureLog) -> set[int | None]:
    printed = {parse_size(match[0]).size_bytes for match in re.finditer(SIZE, log.text)}
    return printed | {log.requested_bytes, log.limit_bytes, log.held_bytes, None}


def test_mixed_lines_of_two_processes_are_separated() -> None:
    first, second = (
        log for log in LOGS if log.name.startswith(("execution, the pool", "fragmentation: "))
    )
    lines = [
        f"[rank{rank}]: {line}\n"
        for pair in zip_longest(first.text.splitlines(), second.text.splitlines(), fillvalue="")
        for rank, line in enumerate(pair)
    ]
    kinds = {failure.kind: figures(failure) for failure in read_failures("".join(lines))}
    assert set(kinds) == {first.kind, second.kind}
    for log in (first, second):
        assert kinds[log.kind] == replace(log, name="", source="", text="")


def test_free_memory_beside_cudnns_error_is_stated() -> None:
    log = next(log for log in LOGS if log.name.startswith("cuDNN's handle on a device with free"))
    assert "46,637,514,752 bytes of the device were free" in explained(log.text).reason


@pytest.mark.parametrize("text", NO_FAILURES)
def test_texts_without_a_failure_are_refused(text: str) -> None:
    assert read_failures(text) == ()


def test_chunks_of_equal_size_are_grouped() -> None:
    log = next(log for log in LOGS if "pool is too full" in log.name)
    allocator = explained(log.text).allocator
    assert allocator is not None
    assert [(group.count, group.size_bytes) for group in allocator.in_use] == [(3, 3 * GIB)]
    assert allocator.largest_free == LoggedSize(3 * GIB)


def test_buffers_have_their_source_lines() -> None:
    failure = explained(LOGS[0].text)
    assert [buffer.source for buffer in failure.buffers] == ["/home/me/models.py:12", None]
    assert failure.buffers[0].label == "concatenate"
    assert dict(failure.parts)["maybe_live_out"] == 6 * 2**20


def test_the_last_exception_is_explained_not_a_later_line() -> None:
    """A run that catches a failure goes on; its last exception ended it."""
    first, second = LOGS[2], LOGS[7]
    text = first.text + "step 1\n" * 100 + second.text
    failures = read_failures(text)
    assert len(failures) == 2
    assert explained(text).kind == "argument"


ROOT = Path(__file__).resolve().parents[2]
PLAN = f"hlo_dumps/qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}"
TEMP_BYTES = 1_312_016


def out_of_memory(size: str, executable: str = "jit_step") -> str:
    return (
        f"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        f"{size}. [executable_name='{executable}'] [tf-allocator-allocation-error='']\n"
    )


@pytest.mark.parametrize("size", ["1312016 bytes", "1312256 bytes", "1.25MiB"])
def test_the_allocation_is_found_by_its_size_even_if_the_log_rounds_it(size: str) -> None:
    planned = planned_failure(explained(out_of_memory(size)), open_path(Path(PLAN)))
    assert planned["allocation"]["size_bytes"] == TEMP_BYTES
    assert planned["allocation"]["candidates"] == 1


def test_the_contents_are_named_as_in_the_source() -> None:
    failure = explained(out_of_memory("132.28MiB"))
    planned = planned_failure(failure, open_path(Path(PLAN)))
    assert planned["allocation"]["candidates"] == 2
    labels = {group["label"] for group in planned["contents"]}
    assert labels == {"out[2]"}


def test_a_size_that_is_not_in_the_plan_is_not_matched() -> None:
    failure = explained(out_of_memory("77.00MiB"))
    planned = planned_failure(failure, open_path(Path(PLAN)))
    assert planned["allocation"] is None
    assert planned["contents"]
    assert any("no allocation" in line for line in failure_lines(failure, planned=planned))


JSON_KEYS = {
    "kind",
    "requested_bytes",
    "executable_name",
    "device",
    "limit_bytes",
    "held_bytes",
    "free_bytes",
    "largest_free_bytes",
    "memory",
    "hardware",
    "call",
    "remedies",
}


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text(LOGS[1].text)
    assert main(["explain", str(log), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == JSON_KEYS
    assert printed["held_bytes"] == LOGS[1].held_bytes
    assert main(["explain", str(log), "--json", "--plan", PLAN]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {*JSON_KEYS, "plan"}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_the_command_reads_standard_input_and_prints_text(
    log: FailureLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.text.encode())))
    assert main(["explain"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{log.kind}: ")
    kernel = "blocks (`BlockSpec`"  # a workload whose kernel is too large does not compile
    assert (kernel if kernel in printed else "--workload module:step") in printed


_ABSL = "E0110 18:36:27.929281    1590 7c1f_compiler_base.cc:2121] "
_HOST_TABLE = (
    f"{_ABSL}Program host requirement 24.50G:\n"
    f"{_ABSL}    HLO temp        24.50G (100.0% utilization: Unpadded (24.50G))\n{_ABSL}\n"
    f"{_ABSL}  Largest program allocations in host:\n{_ABSL}\n"
    f"{_ABSL}  1. Size: 24.50G\n{_ABSL}     Shape: bf16[49,2,1024,131072]{{3,2,1,0:T(8,128)S(5)}}\n"
    f"{_ABSL}     ==========================\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "memory", "hardware", "requested_bytes", "limit_bytes"),
    [
        (_HOST_TABLE, "compile", "host", "tpu", round(24.5 * GIB), None),
        ("Program hbm requirement 512.00M:\n", "compile", "device", "tpu", 512 * MIB, None),
        (
            "Ran out of memory in memory space smem. Used 2.00M of 1.00M smem. Exceeded smem "
            "capacity by 1.00M.",
            *("compile", "on_chip", "tpu", 2 * MIB, MIB),
        ),
        (
            "Scoped allocation with size 17.50M and limit 16.00M exceeded scoped vmem limit by "
            "1.50M.",
            *("compile", "on_chip", "tpu", round(17.5 * MIB), 16 * MIB),
        ),
        (
            "Shared memory size limit exceeded: requested 320.0KiB, available: 99.0KiB",
            *("compile", "on_chip", "gpu", 320 * 1024, 99 * 1024),
        ),
        (
            "OutOfResources: out of resource: triton_mm Required: 147456 Hardware limit:101376 "
            "Reducing block sizes or `num_stages` may help.",
            *("compile", "on_chip", "gpu", 147456, 101376),
        ),
        (
            "Allocator (xla_gpu_host_bfc) ran out of memory trying to allocate 16.00GiB (rounded "
            "to 17179869184)requested by op",
            *("execution", "host", "gpu", 16 * GIB, None),
        ),
        (
            "failed to alloc 4294967296 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            *("execution", "host", None, 4 * GIB, None),
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "execution", "host", None, None, None),
    ],
)
def test_which_memory_ran_out(
    text: str,
    kind: str,
    memory: str,
    hardware: str | None,
    requested_bytes: int | None,
    limit_bytes: int | None,
) -> None:
    failure = explained(text)
    assert (failure.kind, failure.memory, failure.hardware) == (kind, memory, hardware)
    assert (failure.requested_bytes, failure.limit_bytes) == (requested_bytes, limit_bytes)
    printed = "\n".join(failure_lines(failure))
    assert ("the plan itself is larger than the memory" in printed) == (memory == "device")
    assert ("BlockSpec" in printed) == (memory == "on_chip")


def test_buffers_of_the_host_are_listed() -> None:
    (buffer,) = explained(_HOST_TABLE).buffers
    assert buffer.size_bytes == round(24.5 * GIB)
    assert buffer.shape == "bf16[49,2,1024,131072]{3,2,1,0:T(8,128)S(5)}"


def test_a_table_of_usage_is_part_of_its_error() -> None:
    text = (
        "Ran out of memory in memory space hbm. Used 33.27G of 30.75G hbm. Exceeded hbm capacity "
        "by 2.52G.\n\nTotal hbm usage >= 33.52G:\n    reserved 262.14M\n\n"
        "Program hbm requirement 33.27G:\n    HLO temp 33.27G\n"
    )
    (failure,) = read_failures(text)
    assert failure.limit_bytes == round(30.75 * GIB)
    assert dict(failure.parts) == {"reserved": round(262.14 * MIB), "HLO temp": round(33.27 * GIB)}


@pytest.mark.parametrize(
    ("text", "free_bytes", "largest_bytes"),
    [
        (
            "Attempting to reserve 700.25M at the bottom of memory. That was not possible. There "
            "are 900.00M free, 0B reserved, and 512.00M reservable.",
            *(900 * MIB, 512 * MIB),
        ),
        (
            "Attempting to reserve 3221225472B at the bottom of memory. That was not possible. "
            "There are 4294967296B free, 0B reserved, and 2147483648B reservable.",
            *(4 * GIB, 2 * GIB),
        ),
        (
            "Could not allocate 10485760 bytes in memory 0x0x0_HBM0; 4374528 bytes allocatable, "
            "14942208 bytes available",
            *(14942208, 4374528),
        ),
    ],
)
def test_free_bytes_of_a_fragmented_tpu(text: str, free_bytes: int, largest_bytes: int) -> None:
    failure = explained(text)
    assert (failure.kind, failure.hardware) == ("fragmentation", "tpu")
    assert (failure.free_bytes, failure.largest_free_bytes) == (free_bytes, largest_bytes)
    printed = "\n".join(failure_lines(failure))
    assert not re.search("cuda_async|TF_CPP_MIN_LOG_LEVEL|in use", printed)


def test_free_bytes_of_a_fragmented_pool() -> None:
    log = next(log for log in LOGS if log.name.startswith("fragmentation: "))
    failure = explained(log.text)
    assert failure.free_bytes is not None and failure.largest_free_bytes is not None
    assert failure.free_bytes >= (failure.requested_bytes or 0) > failure.largest_free_bytes
    assert "cuda_async" in "\n".join(failure_lines(failure))


_TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 71, in main
    {code}
{marks}  File "/home/me/.venv/lib/python3.12/site-packages/jax/_src/api.py", line 200, in reraise
    return fun(*args)
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.00GiB.
"""
_MARKED = "state, loss = train_step(state, read(batches))"


@pytest.mark.parametrize(
    ("code", "marks", "function"),
    [
        ("state, loss = train_step(state, batch)", "", "train_step"),
        ("loss = float(trainer.step(next(batches)))", "", "trainer.step"),
        (_MARKED, "                  ~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^\n", "train_step"),
        (_MARKED, "", None),
    ],
)
def test_the_line_that_the_traceback_names(code: str, marks: str, function: str | None) -> None:
    failure = explained(_TRACEBACK.format(code=code, marks=marks))
    assert failure.call is not None
    assert (failure.call.source, failure.call.function) == ("/home/me/train.py:71", function)
    assert "called at   /home/me/train.py:71" in "\n".join(failure_lines(failure))


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [("MEMCG", "control group"), ("CPUSET", "NUMA"), ("NONE", "the operating system")],
)
def test_why_linux_ended_a_process(constraint: str, reason: str) -> None:
    text = (
        "python invoked oom-killer: gfp_mask=0xcc0\n"
        f"oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),task=python\n"
        "Memory cgroup out of memory: Killed process 7 (python) total-vm:900kB\n"
    )
    (failure,) = read_failures(text)
    assert (failure.kind, failure.memory) == ("execution", "host")
    assert reason in failure.reason


def test_a_log_without_a_failure_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("step 100: loss 2.5\n")
    assert main(["explain", str(log)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "run.log: expected the output of a run that ran out of memory" in error
    assert main(["explain", str(tmp_path / "missing.log")]) == 2
    assert "missing.log: expected a file or directory, found none" in capsys.readouterr().err


def test_the_command_starts_without_jax() -> None:
    code = (
        "import sys; from xlapipe.cli import main; code = main(['explain', '/nonexistent']); "
        "assert code == 2; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


REAL = ROOT / "tests/data/failures"


@pytest.mark.parametrize(
    ("name", "kind", "requested_bytes", "executable_name"),
    [
        ("arguments_too_large", "argument", 2 * GIB, None),
        ("autotuning_of_a_convolution", "autotuning", round(16.02 * GIB), None),
        ("cuda_async_allocator", "execution", 30 * GIB, "jit__lambda"),
        ("fragmentation", "fragmentation", 2 * GIB, "jit__lambda"),
        ("full_pool_too_small", "execution", 8 * GIB, "jit_exchange_psum"),
        ("one_of_two_pools_is_full", "execution", 10 * GIB, "jit_exchange_psum"),
        ("fragmentation_with_statistics", "fragmentation", 3 * GIB // 2, "jit__lambda"),
        ("leaked_references", "execution", GIB // 4, "jit__lambda"),
        ("leaked_references_with_statistics", "execution", GIB // 2, "jit__lambda"),
        ("outputs_too_large", "execution", 1_717_987_072, "jit__lambda"),
        ("platform_allocator", "execution", 30 * GIB, "jit__lambda"),
        ("preallocation_of_two_processes", "other_process", 50 * GIB, "jit__lambda"),
        ("temp_too_large", "autotuning", round(13.43 * GIB), None),
        ("temp_too_large_at_execution", "execution", 28_800_900_096, "jit_make_temp"),
    ],
)
def test_failures_of_an_h200(
    name: str, kind: str, requested_bytes: int, executable_name: str | None
) -> None:
    failure = explained((REAL / f"{name}.log").read_text())
    assert failure.kind == kind
    assert failure.requested_bytes == requested_bytes
    assert failure.executable_name == executable_name
    assert failure.device == "GPU_0"


@pytest.mark.parametrize(
    ("name", "executable_name", "names_memory"),
    [
        ("cublas_handle", "jit_matmul", False),
        ("cuda_graph", "jit_chain", True),
        ("cudnn_attention", "jit__lambda", True),
        ("cufft_plan", "jit_fft2", False),
        ("cusolver_handle", "jit_svd", False),
    ],
)
def test_failures_of_libraries_on_a_full_h200(
    name: str, executable_name: str, names_memory: bool
) -> None:
    text = (REAL / f"{name}.log").read_text()
    failure = explained(text)
    assert (failure.kind, failure.executable_name) == ("library", executable_name)
    assert ("does not state why" in failure.reason) != names_memory
    assert len(read_failures(text)) == 1


def test_figures_are_exact_where_the_log_has_them() -> None:
    """The allocator's statistics have two decimals, its list of chunks and its limit do not."""
    failure = explained((REAL / "leaked_references_with_statistics.log").read_text())
    assert failure.held_bytes == 12 * 536_870_912 + 536_871_424
    assert failure.limit_bytes == 7_505_707_008
    assert failure.allocator is not None
    assert [group.count for group in failure.allocator.in_use] == [12, 1]


@pytest.mark.parametrize(
    ("name", "requested_bytes", "executable_name"),
    [
        ("full_nccl_init", 512, "jit_exchange_psum"),
        ("full_nccl_second_collective", None, None),
        ("full_nccl_user_buffers", None, "jit_exchange_psum"),
        ("nccl_huge_buffers", None, "jit_exchange_psum"),
        ("nccl_init_of_two_processes", None, "jit__identity_fn"),
        ("nccl_init_without_cumem", 2**28, "jit_exchange_psum"),
        ("nccl_init_without_room_or_warnings", None, "jit_exchange_psum"),
    ],
)
def test_failures_of_nccl_on_h200s(
    name: str, requested_bytes: int | None, executable_name: str | None
) -> None:
    failure = explained((REAL / f"{name}.log").read_text())
    assert failure.kind == "library"
    assert failure.requested_bytes == requested_bytes
    assert failure.executable_name == executable_name
    assert "does not state why" not in failure.reason


def test_the_hosts_memory_is_not_a_device() -> None:
    failure = explained((REAL / "pinned_host_memory.log").read_text())
    assert (failure.kind, failure.device) == ("argument", "host")
    assert (failure.requested_bytes, failure.held_bytes) == (2 * GIB, 0)


def test_a_process_without_a_context_finds_full_devices() -> None:
    failure = explained((REAL / "full_no_context.log").read_text())
    assert failure.kind == "other_process"
    assert failure.requested_bytes is None


@pytest.mark.parametrize(
    "name", ["autotuning_scratch", "full_nccl_init_without_warnings", "libraries_without_room"]
)
def test_logs_of_an_h200_without_a_failure(name: str) -> None:
    """The run survived what its log warns of, or waits for a peer without saying why."""
    assert read_failures((REAL / f"{name}.log").read_text()) == ()


def test_every_log_of_the_h200_is_tested() -> None:
    assert len(list(REAL.glob("*.log"))) == 31


def test_a_limit_that_the_allocator_does_not_keep_is_the_device() -> None:
    failure = explained((REAL / "cuda_async_allocator.log").read_text())
    assert (failure.held_bytes, failure.limit_bytes) == (120 * GIB, 150_109_880_320)


def test_the_picture_shows_free_pieces() -> None:
    allocator = explained((REAL / "fragmentation.log").read_text()).allocator
    assert allocator is not None
    assert (len(allocator.free_pieces), allocator.free_pieces[0]) == (14, 7)


def test_a_long_log_is_read_in_seconds() -> None:
    """Only the lines near a mention of memory are searched."""
    line = "2026-11-22 10:00:00 INFO step 100 loss 2.34 throughput 1234 tokens/s rank 3\n"
    text = line * 50_000 + LOGS[2].text + line * 50_000
    started = time.process_time()
    failure = explained(text)
    assert time.process_time() - started < 5
    assert failure.line > 50_000
    assert failure.executable_name == LOGS[2].executable_name


@pytest.mark.parametrize("digits", [310, 5000])
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_numbers_of_more_digits_than_a_size(log: FailureLog, digits: int) -> None:
    failures = read_failures(re.sub(r"\d+", "9" * digits, log.text))
    assert all((failure.requested_bytes or 0) < 10**30 for failure in failures)
