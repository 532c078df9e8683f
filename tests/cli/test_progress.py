"""The bar of long work states the time left."""

import io
import re

from rich.console import Console

from xlapipe.cli.progress import Bar


def plain(screen: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


def test_the_time_left_is_known_after_the_first_of_a_few_items() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    bar = Bar("compiling", 3, console=console, silent=False)
    task = bar.tasks[0]
    with bar:
        task.start_time = bar.get_time() - 60
        bar.refresh()
        assert re.search(r"0/3 \S+ time left unknown", plain(screen))
        bar.add_done()
        bar.refresh()
    assert re.search(r"1/3 0:01:0\d about 0:02:0\d left", plain(screen))
