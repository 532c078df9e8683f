"""Runs forms of gradients over two CPU devices that split the batch: `forms_on_cpus.py OUT.json`.

Runs in a separate process, since jax reads the number of CPU devices once per process.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tests.steps import batch_steps
from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.search.choosing import forms
from xlapipe.search.choosing.compiles import forward_graph_at
from xlapipe.search.choosing.forms import form_changes


class Written:
    """A program over two devices."""

    plan = type("Plan", (), {"totals": type("Totals", (), {"temp_bytes": 1})})
    facts = type("Facts", (), {"mesh": {"data": 2}})


def main(out: str) -> None:
    forms._LEAST_BYTES = 1
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=auto)
    whole, rows = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
    weights = jax.device_put(batch_steps.gpt_weights(), whole)
    both = jax.random.randint(jax.random.key(0), (16, 65), 0, batch_steps.VOCABULARY)
    tokens, targets = (jax.device_put(part, rows) for part in (both[:, :-1], both[:, 1:]))

    def compiled() -> Any:
        def step(weights: Any, tokens: Any, targets: Any) -> Any:
            return jax.value_and_grad(batch_steps.optax_loss)(weights, tokens, targets)

        jitted = jax.jit(step, in_shardings=(whole, rows, rows), out_shardings=whole)
        return jitted.lower(weights, tokens, targets).compile()

    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "graph.json"
        apply_policy(PolicyChange(record=str(record)))
        written = compiled()
        stop()
        graph = forward_graph_at(record)
    expected, results = written(weights, tokens, targets), {}
    for change in form_changes(Written(), graph):  # type: ignore[arg-type]
        apply_policy(change.policy or PolicyChange())
        changed = compiled()
        stop()
        found = changed(weights, tokens, targets)
        worst = [
            float(np.max(np.abs(a - b)) / np.max(np.abs(a)))
            for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
        ]
        results[change.text.partition(" (")[0]] = {
            "error": max(worst),
            "temp_bytes": changed.memory_analysis().temp_size_in_bytes,
            "gathers": changed.as_text().count("all-gather("),
        }
    written_bytes = written.memory_analysis().temp_size_in_bytes
    Path(out).write_text(json.dumps({"written_bytes": written_bytes, "forms": results}))


if __name__ == "__main__":
    main(sys.argv[1])
