"""The readers of memory failures: kind and figures of every form that XLA prints."""

import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.report.failure_logs import LOGS, NO_FAILURES, FailureLog
from xlapipe.cli import main
from xlapipe.report.failure_lines import failure_lines, planned_failure
from xlapipe.report.failures.failure import MemoryFailure
from xlapipe.report.failures.read_log import LogFindings, read_log
from xlapipe.report.failures.sizes import SIZE, LoggedSize, parse_size
from xlapipe.report.subjects import open_subject

GIB, MIB = 2**30, 2**20


def explained(text: str) -> MemoryFailure:
    failure = read_log(text).last_failure
    assert failure is not None
    return failure


def failures_of(text: str) -> tuple[MemoryFailure, ...]:
    return read_log(text).failures


def printed_lines(failure: MemoryFailure, **planned: Any) -> list[str]:
    return list(failure_lines(LogFindings((failure,)), **planned))


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


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_wrapped_logs_have_the_same_figures(log: FailureLog) -> None:
    lines = log.text.splitlines(keepends=True)
    wrapped = (
        log.text.replace("\n", "\r\n"),
        "".join(f"\x1b[31m{line.rstrip()}\x1b[0m\n" for line in lines),
    )
    for text in wrapped:
        assert figures(explained(text)) == replace(log, name="", source="", text="")


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_a_log_that_is_cut_off_anywhere_has_no_other_figure(log: FailureLog) -> None:
    """A figure that is cut in two is left out."""
    known = known_sizes(log)
    inside_numbers = [match.start() for match in re.finditer(r"(?<=[\d.])[\d.KMGi]", log.text)]
    for end in inside_numbers[:: 1 + len(inside_numbers) // 12]:
        for failure in failures_of(log.text[:end]):
            sizes = {failure.requested_bytes, failure.limit_bytes, failure.held_bytes}
            assert sizes <= known, log.text[:end][-80:]


def known_sizes(log: FailureLog) -> set[int | None]:
    printed = {parse_size(match[0]).size_bytes for match in re.finditer(SIZE, log.text)}
    return printed | {log.requested_bytes, log.limit_bytes, log.held_bytes, None}


@pytest.mark.parametrize("text", NO_FAILURES)
def test_texts_without_a_failure_are_refused(text: str) -> None:
    assert read_log(text) == LogFindings()


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
    failures = failures_of(text)
    assert len(failures) == 2
    assert explained(text).kind == second.kind != first.kind


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
    planned = planned_failure(explained(out_of_memory(size)), open_subject(Path(PLAN)))
    assert planned["allocation"]["size_bytes"] == TEMP_BYTES
    assert planned["allocation"]["candidates"] == 1


def test_the_contents_are_named_as_in_the_source() -> None:
    failure = explained(out_of_memory("132.28MiB"))
    planned = planned_failure(failure, open_subject(Path(PLAN)))
    assert planned["allocation"]["candidates"] == 2
    labels = {group["label"] for group in planned["contents"]}
    assert labels == {"out[2]"}


def test_a_size_that_is_not_in_the_plan_is_not_matched() -> None:
    failure = explained(out_of_memory("77.00MiB"))
    planned = planned_failure(failure, open_subject(Path(PLAN)))
    assert planned["allocation"] is None
    assert planned["contents"]
    assert any("no allocation" in line for line in printed_lines(failure, planned=planned))


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
    "exceeds_limit",
    "instruction",
    "warnings",
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


@pytest.mark.parametrize(
    ("text", "kind", "memory", "hardware", "requested_bytes", "limit_bytes"),
    [
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
            "Allocator (xla_gpu_host_bfc) ran out of memory trying to allocate 16.00GiB (rounded "
            "to 17179869184)requested by op",
            *("execution", "host", "gpu", 16 * GIB, None),
        ),
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
    printed = "\n".join(printed_lines(failure))
    assert ("the plan itself is larger than the memory" in printed) == (memory == "device")
    assert ("BlockSpec" in printed) == (memory == "on_chip")


def test_a_table_of_usage_is_part_of_its_error() -> None:
    text = (
        "Ran out of memory in memory space hbm. Used 33.27G of 30.75G hbm. Exceeded hbm capacity "
        "by 2.52G.\n\nTotal hbm usage >= 33.52G:\n    reserved 262.14M\n\n"
        "Program hbm requirement 33.27G:\n    HLO temp 33.27G\n"
    )
    (failure,) = failures_of(text)
    assert failure.limit_bytes == round(30.75 * GIB)
    assert dict(failure.parts) == {"reserved": round(262.14 * MIB), "HLO temp": round(33.27 * GIB)}


def test_free_bytes_of_a_fragmented_pool() -> None:
    log = next(log for log in LOGS if log.name.startswith("fragmentation: "))
    failure = explained(log.text)
    assert failure.free is not None and failure.largest_free is not None
    requested_bytes = failure.requested_bytes or 0
    assert failure.free.size_bytes >= requested_bytes > failure.largest_free.size_bytes
    assert "cuda_async" in "\n".join(printed_lines(failure))


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
        (_MARKED, "                  ~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^\n", None),
    ],
)
def test_the_line_that_the_traceback_names(code: str, marks: str, function: str | None) -> None:
    failure = explained(_TRACEBACK.format(code=code, marks=marks))
    assert failure.call is not None
    assert (failure.call.source, failure.call.function) == ("/home/me/train.py:71", function)
    assert "called at   /home/me/train.py:71" in "\n".join(printed_lines(failure))


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


def test_figures_are_exact_where_the_log_has_them() -> None:
    """The allocator's statistics have two decimals, its list of chunks and its limit do not."""
    failure = explained((REAL / "leaked_references_with_statistics.log").read_text())
    assert failure.held_bytes == 12 * 536_870_912 + 536_871_424
    assert failure.limit_bytes == 7_505_707_008
    assert failure.allocator is not None
    assert [group.count for group in failure.allocator.in_use] == [12, 1]


def test_the_hosts_memory_is_not_a_device() -> None:
    failure = explained((REAL / "pinned_host_memory.log").read_text())
    assert (failure.kind, failure.device) == ("argument", "host")
    assert (failure.requested_bytes, failure.held_bytes) == (2 * GIB, 0)


def test_an_allocation_that_autotuning_did_without_is_no_failure() -> None:
    assert failures_of((REAL / "autotuning_scratch.log").read_text()) == ()


def test_every_log_of_the_h200_is_tested() -> None:
    assert len(list(REAL.glob("*.log"))) == 15


def test_the_picture_shows_free_pieces() -> None:
    allocator = explained((REAL / "fragmentation.log").read_text()).allocator
    assert allocator is not None
    assert (len(allocator.free_pieces), allocator.free_pieces[0]) == (14, 7)


def test_a_long_log_is_read_in_seconds() -> None:
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
    failures = failures_of(re.sub(r"\d+", "9" * digits, log.text))
    assert all((failure.requested_bytes or 0) < 10**30 for failure in failures)


BFC = "W xla/tsl/framework/bfc_allocator.cc:497] "
CANNOT_REDUCE = (
    "W hlo_rematerialization.cc:3005] Can't reduce memory use below 20.00GiB (21474836480 bytes) "
    "by rematerialization; only reduced to 30.00GiB (32212254720 bytes), down from 31.00GiB "
    "(33285996544 bytes) originally\n"
)
REPLICATED = (
    "E spmd_partitioner.cc:613] [spmd] Involuntary full rematerialization. The compiler was not "
    "able to go from sharding {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]} without doing a full "
    "rematerialization of the tensor for HLO operation: %gather.3 = f32[1000,300]{1,0} "
    'gather(f32[9]{0} %p), metadata={op_name="jit(f)/gather" source_file="/m/embed.py" '
    "source_line=12}. You probably want to enrich the sharding annotations.\n"
)
LATER_REPLICATED = (
    "W spmd_partitioner.cc:650] [SPMD] Involuntary full rematerialization. The compiler cannot go "
    "from sharding {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]} efficiently for HLO operation "
    "%copy.1 = bf16[1000,600]{1,0} copy(%x). As the last resort, SPMD will replicate the tensor.\n"
)


def test_a_program_that_xla_could_not_reduce_is_why_its_request_failed() -> None:
    text = (
        CANNOT_REDUCE
        + f"{BFC}Allocator (GPU_0_bfc) ran out of memory trying to allocate 29.80GiB (rounded to "
        "31997507840)requested by op\n" + BFC + "**" + "_" * 98 + "\n"
        "E client.cc:3] Execution of replica 0 failed: RESOURCE_EXHAUSTED: Out of memory while "
        "trying to allocate 31997507700 bytes.\nTraceback (most recent call last):\n"
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 31997507700 "
        "bytes.\n"
    )
    log = read_log(text)
    printed = "\n".join(failure_lines(log))
    assert len(log.failures) == 1 and "(printed 2 times)" in printed
    assert "needs 30.00 GiB (32,212,254,720 B): XLA compiled it for 20.00 GiB" in printed
    assert "2 of 100 parts in use: no other array is in the way" in printed


def test_a_warning_without_a_failure_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text(CANNOT_REDUCE + "step 10 loss 2.31\n")
    assert main(["explain", str(log)]) == 0
    printed = capsys.readouterr().out
    assert "needs 30.00 GiB (32,212,254,720 B): XLA compiled it for 20.00 GiB" in printed
    assert "No allocation failed in this log" in printed
    assert main(["explain", str(log), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["kind"] is None
    assert figures["warnings"][0]["needed_bytes"] == 32_212_254_720


@pytest.mark.parametrize(
    ("warning", "shape"), [(REPLICATED, "f32[1000,300]"), (LATER_REPLICATED, "bf16[1000,600]")]
)
@pytest.mark.parametrize("requested", [1_200_000, 1_200_128, 1_300_000])
def test_a_replicated_array_that_is_the_failed_request(
    warning: str, shape: str, requested: int
) -> None:
    log = read_log(warning + out_of_memory(f"{requested} bytes"))
    printed = "\n".join(failure_lines(log))
    assert f"XLA replicates {shape} = 1,200,000 B" in printed
    assert ("exactly the failed request" in printed) == (requested != 1_300_000)
    assert ("/m/embed.py:12" in printed) == (warning is REPLICATED)
    assert "from {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]}" in printed


def test_a_request_larger_than_the_limit_cannot_fit_at_any_time() -> None:
    text = "I pjrt: XLA backend allocating 10000000000 bytes on device 0 for BFCAllocator.\n"
    for size, is_larger in (("10000000256", True), ("9999999744", False)):
        failure = explained(text + out_of_memory(f"{size} bytes"))
        assert failure.exceeds_limit == is_larger
        printed = "\n".join(printed_lines(failure))
        line = f"cannot fit at any time: {int(size):,} B requested, 10,000,000,000 B is the limit"
        assert (line in printed) == is_larger


@pytest.mark.parametrize("end", [".", "\n", "", ".\nHLO module: jit_f"])
def test_quoted_text_is_not_cut_at_a_decimal_point(end: str) -> None:
    text = "Ran out of memory in memory space vmem. Used 17.05M of 16.00M vmem. Exceeded vmem "
    failure = explained(f"{text}capacity by 1.05M{end}")
    assert failure.message == f"{text}capacity by 1.05M"


def test_the_convolution_that_could_not_be_timed() -> None:
    text = (
        "XlaRuntimeError: UNKNOWN: Failed to determine best cudnn convolution algorithm for:\n"
        "%cudnn-conv.7 = (f32[1,8,90,90]{3,2,1,0}, u8[0]{0}) custom-call(f32[1,4,90,90] %a), "
        'custom_call_target="__cudnn$convForward", metadata={op_name="jit(f)/conv" '
        'source_file="/m/model.py" source_line=41}\nOriginal error: RESOURCE_EXHAUSTED: Out of '
        "memory while trying to allocate 6266290176 bytes.\n"
    )
    failure = explained(text)
    instruction = failure.instruction
    assert instruction is not None and failure.kind == "autotuning"
    assert (instruction.shape, instruction.source) == ("f32[1,8,90,90]", "/m/model.py:41")
    printed = "\n".join(printed_lines(failure))
    assert "f32[1,8,90,90]" in printed and "/m/model.py:41" in printed


def test_two_requests_of_other_sizes_are_two_failures() -> None:
    failures = failures_of(out_of_memory("4.00GiB") + out_of_memory("5.00GiB"))
    assert [failure.count for failure in failures] == [1, 1]
    (failure,) = failures_of(out_of_memory("4.00GiB") + out_of_memory("4294967296 bytes"))
    assert failure.count == 2 and failure.requested == LoggedSize(4 * GIB)


def test_what_is_not_read_is_an_error_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("step 1\nslurmstepd: error: Detected 1 oom_kill event in StepId=123.0.\n")
    assert main(["explain", str(log)]) == 2
    error = capsys.readouterr().err
    assert "line 2 is not recognised: 'slurmstepd: error" in error and "fix:" in error
