"""Results that XLA is given while it compiles: the pipes it waits at, and the files it reads."""

from pathlib import Path

import pytest

from xlapipe.compile.answered_tuning import PredictedLockError, answering, write_results
from xlapipe.time.predicted_locks.known_results import TABLES, KnownResult, KnownResults

MODULE, SAME = (
    f"module_0002.jit_step.{ending}.hlo.pb"
    for ending in (
        "before_config_assignment",
        "0000.config-assigner.after_conv-fp8-fallback.before_config-assigner",
    )
)


def test_what_writes_the_second_file_waits_for_the_answer(tmp_path: Path) -> None:
    answers: list[bytes] = []
    dump = tmp_path / "dump"
    with answering(dump, "module_0002.jit_step", answers.append) as has_waited:
        (dump / MODULE).write_bytes(b"a module")
        (dump / SAME).write_bytes(b"the same")
        assert answers == [b"a module"]
    assert has_waited
    assert not any(tmp_path.rglob("*.pb"))


@pytest.mark.parametrize("written", [[], [MODULE]])
def test_it_ends_where_xla_writes_no_such_files(tmp_path: Path, written: list[str]) -> None:
    answers: list[bytes] = []
    dump = tmp_path / "dump"
    with answering(dump, "module_0002.jit_step", answers.append) as has_waited:
        for name in written:
            (dump / name).write_bytes(b"a module")
    assert not has_waited
    assert len(answers) == len(written)
    assert [path.name for path in tmp_path.rglob("*")] == ["dump"]


def test_a_result_is_written_as_xla_reads_it(tmp_path: Path) -> None:
    known = KnownResults.read(TABLES / "h200-jax0.12.0.1.jsonl")
    tile = "block_level { num_warps: 4 output_tiles { sizes: 1 sizes: 512 } is_tma_allowed: true }"
    config = f"backend: BLOCK_LEVEL_EMITTER backend_config {{ {tile} }}"
    write_results(tmp_path, {"abc": KnownResult("abc", config, "v1")}, known)
    (file,) = tmp_path.rglob("*.pb")
    assert file.relative_to(tmp_path) == Path(known.device, "abc.pb")
    result = (
        b"\x08\x09\x12\x0d\x1a\x0b" + b"\x10\x04" + b"\x1a\x05\x08\x01\x08\x80\x04" + b"\x30\x01"
    )
    content = file.read_bytes()
    assert b"\x0a" + bytes([len(result)]) + result + b"\x12\x02v1" in content
    assert known.codegen.encode() in content


def test_every_known_result_can_be_written(tmp_path: Path) -> None:
    for path in sorted(TABLES.glob("*.jsonl")):
        known = KnownResults.read(path)
        results = {str(number): row for number, row in enumerate(known.results)}
        write_results(tmp_path, results, known)
    with pytest.raises(PredictedLockError, match="unknown kernel"):
        write_results(tmp_path, {"a": KnownResult("a", "kernel: 3", "v1")}, known)
