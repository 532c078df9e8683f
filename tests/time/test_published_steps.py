"""Training steps of TPUs whose times Google published: the recorded estimates beside them.

`python -m tests.published_tpu.compare` compiles the programs and prints the table; its figures are
in docs/tpu.md.
"""

from tests.published_tpu.published import errors, judged


def test_estimates_of_training_steps_are_near_and_beat_one_mfu() -> None:
    rows = list(judged())
    assert len(rows) >= 10
    own, single = errors()
    assert own.median <= 0.10
    assert own.rms < 0.7 * single.rms
    for name, _, record in rows:
        assert record["low"] < record["estimated"] < record["high"], name
        # The cores do one thing after another: the parts and waits are the time.
        parts = sum(record["parts"].values()) + sum(record["waits"].values())
        assert abs(parts / record["estimated"] - 1) < 0.02, name
    outside = [name for name, row, r in rows if not r["low"] < row.seconds < r["high"]]
    assert len(outside) <= 1, outside
