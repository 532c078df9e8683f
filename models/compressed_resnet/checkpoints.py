"""Checkpoints of a training run, written by orbax.

A folder of checkpoints holds `run.json`, the options that the run must resume with, and a folder
for each saved step. orbax is imported when a checkpoint is asked for.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlapipe import XlapipeError

RUN = "run.json"
KEPT = 3


class Checkpoints:
    """The checkpoints of one run in a folder."""

    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        """Opens or makes the folder.

        Args:
          run: options, by flag, that determine the state.

        Raises:
          XlapipeError: the folder is that of a run with other options, or is not writable.
        """
        try:
            import orbax.checkpoint as ocp
        except ImportError:
            raise XlapipeError(
                "--checkpoints needs orbax; fix: pip install orbax-checkpoint"
            ) from None
        self._folder = folder.resolve()
        _check_run(self._folder, run)
        self._ocp = ocp
        # A save ends before the next step, which may reuse the memory of the state.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=False, create=False
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    @property
    def latest_step(self) -> int | None:
        """The number of steps before the last checkpoint; None without a checkpoint."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, step: int, state: Any) -> None:
        """Writes the state after `step` steps."""
        self._manager.save(step, args=self._ocp.args.StandardSave(state))

    def restore(self, step: int, abstract_state: Any) -> Any:
        """The state after `step` steps.

        Args:
          abstract_state: its tree, with shapes, dtypes and shardings.

        Raises:
          XlapipeError: the checkpoint cannot be read.
        """
        try:
            return self._manager.restore(step, args=self._ocp.args.StandardRestore(abstract_state))
        except (OSError, ValueError, KeyError, TypeError) as error:
            first_line = str(error).strip().splitlines()[:1]
            raise XlapipeError(
                f"{self._folder / str(step)}: not a checkpoint of this network: "
                f"{' '.join(first_line)}; fix: remove that folder, to resume from an earlier one"
            ) from None

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()


def _check_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Compares the options with those of the folder's run; writes them if the folder is new."""
    path = folder / RUN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(dict(run), indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
            return
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise XlapipeError(f"--checkpoints {folder}: {error}") from None
    different = [name for name in run if before.get(name) != run[name]]
    if different:
        name = different[0]
        raise XlapipeError(
            f"--checkpoints {folder}: its run has {name} {before.get(name)}; found {run[name]}; "
            "fix: pass the same options, or another folder"
        )
