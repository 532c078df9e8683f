"""The smallest plan that is found for ten unrolled models, and the best that is written by hand.

`python -m tests.search.test_hand_written_blocks` prints the sizes as a table.
"""

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

import pytest

import xlapipe
from tests.search.test_blocks import loaded, lowered, places, source_of
from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.search.choosing.policies import block_changes

pytestmark = [pytest.mark.jax, pytest.mark.slow]

TARGET, COMPILES = "h100_sxm", 7
_WORKLOAD = """
from xlapipe import Workload


def workload(name, batch=8, length=256):
    step, arguments = STEPS[name](batch, length)
    return Workload(name="step", fn=step, args=arguments)
"""
# Other policies keep more.
_POLICY = "policy = jax.checkpoint_policies.nothing_saveable\n"
_PARTS = """
attention = jax.checkpoint(attention, policy=policy)
mlp = jax.checkpoint(mlp, policy=policy)
"""
_NNX_BLOCK = (
    "NnxBlock.__call__ = nnx.remat(NnxBlock.__call__, static_argnums=(2,), policy=policy)\n"
)
_NNX_PARTS = f"""{_NNX_BLOCK}
NnxAttention.__call__ = nnx.remat(NnxAttention.__call__, policy=policy)
"""
# What a person writes at the end of the module: around blocks, and around their parts.
WRITTEN: Mapping[str, tuple[str, str]] = {
    "plain transformer": (
        """
as_written = block


def block(w, x, *, train):
    return jax.checkpoint(partial(as_written, train=train), policy=policy)(w, x)
""",
        _PARTS,
    ),
    "plain encoder and decoder": (
        """
encoder_block = jax.checkpoint(encoder_block, policy=policy)
decoder_block = jax.checkpoint(decoder_block, policy=policy)
""",
        _PARTS,
    ),
    "plain mixture of experts": (
        "expert_block = jax.checkpoint(expert_block, static_argnums=2, policy=policy)\n",
        "mlp = jax.checkpoint(mlp, policy=policy)\n",
    ),
    "plain state space": (
        "state_block = jax.checkpoint(state_block, policy=policy)\n",
        "mlp = jax.checkpoint(mlp, policy=policy)\n",
    ),
    "nnx transformer": (_NNX_BLOCK, ""),
    "nnx transformer with dropout": (
        "NnxDroppingBlock.__call__ = nnx.remat(NnxDroppingBlock.__call__, policy=policy)\n",
        _NNX_PARTS,
    ),
    "nnx U-Net": (_NNX_BLOCK, ""),
    "linen ViT": ("LinenBlock = nn.remat(LinenBlock, policy=policy)\n", ""),
    "linen ResNet": (
        """
as_written = ResidualBlock.__call__


def recomputed(block, x, *, train):
    return nn.remat(lambda block, x: as_written(block, x, train=train), policy=policy)(block, x)


ResidualBlock.__call__ = recomputed
""",
        "",
    ),
    "equinox transformer": (
        "Block.__call__ = eqx.filter_checkpoint(Block.__call__, policy=policy)\n",
        "",
    ),
}
# The others take minutes.
_SAMPLED = ("nnx U-Net",)
_CASES = [
    pytest.param(name, marks=[] if name in _SAMPLED else pytest.mark.exhaustive) for name in WRITTEN
]


def forms(name: str) -> dict[str, str]:
    """What a person writes, by what gets a checkpoint."""
    blocks, parts = WRITTEN[name]
    return {
        "blocks": blocks,
        **({"parts": parts, "blocks and parts": parts + blocks} if parts else {}),
    }


def sizes(name: str) -> tuple[int, dict[str, int], dict[str, int]]:
    """Bytes of the plan as written, of the hand-written forms, and of those that are found."""
    source = source_of(name).replace("WIDTH = 16", "WIDTH = 256")
    written = forms(name)
    modules = {f"written_{n}": _POLICY + text for n, text in enumerate(written.values())}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for module, text in {"unchanged": "", **modules}.items():
            Path(f"{module}.py").write_text(f"{source}\n{text}{_WORKLOAD}", encoding="utf-8")
        call = f"workload(name={name!r})"
        by_hand = {
            form: _total(f"{module}:{call}") for form, module in zip(written, modules, strict=True)
        }
        rows = xlapipe.choose(f"unchanged:{call}", target=TARGET, remat=True, compiles=COMPILES)
    unchanged = next(row["total_bytes"] for row in rows if row["change"] is None)
    return unchanged, by_hand, {row["change"]: row["total_bytes"] for row in rows if row["change"]}


def _total(workload: str) -> int:
    (row,) = xlapipe.choose(workload, target=TARGET)
    return int(row["total_bytes"])


def operations(lowered_text: str) -> Counter[str]:
    """The lines of a lowered program without names: arguments may have another order."""
    in_order = re.compile(r"func\.func|^ *return ")
    lines = (line for line in lowered_text.splitlines() if not in_order.search(line))
    return Counter(re.sub(r"%[\w#:]+", "%", line) for line in lines)


@pytest.mark.parametrize("name", WRITTEN)
def test_every_hand_written_form_is_one_of_those_that_are_tried(name: str, tmp_path: Path) -> None:
    source = source_of(name)
    tried = []
    for change in block_changes(places(tmp_path, name)):
        apply_policy(change.policy)
        tried.append(operations(lowered(loaded(tmp_path, source), name).as_text()))
        stop()
    for form, text in forms(name).items():
        if (name, form) == ("plain state space", "blocks and parts"):
            continue  # tried with a checkpoint of the scan's body too
        by_hand = lowered(loaded(tmp_path, f"{source}\n{_POLICY}{text}"), name).as_text()
        assert operations(by_hand) in tried, text


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", _CASES)
def test_the_smallest_plan_is_at_most_a_twentieth_larger_than_the_best_written_by_hand(
    name: str,
) -> None:
    written, by_hand, found = sizes(name)
    assert min(by_hand.values()) < written
    assert min(found.values()) <= 1.05 * min(by_hand.values())


def _table() -> None:
    os.environ["XLAPIPE_NO_CACHE"] = "1"
    print("| model | as written | best by hand | | smallest found | | |")
    print("|---|--:|--:|---|--:|---|--:|", flush=True)
    for name in sys.argv[1:] or WRITTEN:
        written, by_hand, found = sizes(name)
        hand, least = min(by_hand, key=by_hand.__getitem__), min(found, key=found.__getitem__)
        more = found[least] / by_hand[hand] - 1
        cells = [name, f"{written:,}", f"{by_hand[hand]:,}", hand]
        cells += [f"{found[least]:,}", least, f"{more:+.1%}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    _table()
