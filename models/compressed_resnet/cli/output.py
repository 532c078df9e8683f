"""Terminal output of a training run, on stderr."""

from rich.console import Console

from models.progress_bar import Bar


def note(text: str) -> None:
    """Writes a line."""
    _stderr().print(f"train: {text}", markup=False)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


class StepBar(Bar):
    """A progress bar of steps with the last loss; a line per reading where there is no terminal."""

    def __init__(self, steps: int, first_step: int, *, silent: bool) -> None:
        self._done = first_step
        self._lines = not (silent or _stderr().is_terminal)
        super().__init__("training", steps, silent=silent)
        self.advance(first_step)

    def show(self, done: int, loss: float, rate: float | None) -> None:
        """Shows the loss of step `done`, and images per second if they are known."""
        speed = "" if rate is None else f", {rate:,.0f} images/s"
        self.advance(done - self._done, last=f"loss {loss:.4f}{speed}")
        self._done = done
        if self._lines:
            note(f"step {done:,}: loss {loss:.4f}{speed}")
