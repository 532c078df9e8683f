"""The HTML report of large models in headless Chromium: first paint and interaction.

The page measures the times: `first-contentful-paint` from the start of the navigation and, for an
interaction, from the event's time stamp to the end of the frame that shows its result.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: pip install xlapipe[browser]")

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import chromium, missing

HERE = Path(__file__).resolve().parent

ROUNDS = 5
WATCH = """
window.taken = [];
for (const kind of ["pointermove", "keydown", "change", "click"]) {
  addEventListener(kind, (event) => {
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => taken.push([kind, performance.now() - event.timeStamp]);
      channel.port2.postMessage(null);
    });
  }, { capture: true });
}
"""
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@pytest.fixture(scope="session", params=[28, 150])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a decode step with 28 or 150 layers; with 150 it has 10,000 values."""
    folder = tmp_path_factory.mktemp("report")
    page = folder / f"{request.param}-layers.html"
    run("dump", f"programs:decode_{request.param}", "--out", folder / "dumps")
    (manifest,) = (folder / "dumps").glob("*/*/manifest.json")
    run("report", manifest.parent, "--out", page)
    return page


def run(*arguments: str | Path) -> None:
    """Runs xlapipe as a process in this folder."""
    command = [sys.executable, "-m", "xlapipe.cli", *map(str, arguments)]
    subprocess.run(command, cwd=HERE, check=True, capture_output=True)


def test_page(benchmark: Any, page: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    paints: list[float] = []
    ready: list[float] = []
    taken: dict[str, list[float]] = {}

    def rounds() -> None:
        with chromium() as driver:
            for _ in range(ROUNDS):
                driver.get(page.as_uri())
                ready.append(driver.execute_script("return performance.now()"))
                paints.append(driver.execute_script(PAINT) or 0.0)
                interact(driver, taken)

    benchmark.pedantic(rounds, rounds=1)
    values = sum(1 for _ in page.read_text().split('"offset_bytes"')) - 1
    print(f"\n{page.stem}: {page.stat().st_size / 1e6:.1f} MB, {values:,} values")
    # Chromium reports no paint for a page from its cache.
    shown = [paint for paint in paints if paint]
    print(f"  first paint: median {median(shown):.0f} ms, worst {max(shown):.0f} ms (goal: 1,000)")
    print(f"  page ready: median {median(ready):.0f} ms")
    for kind, milliseconds in taken.items():
        print(
            f"  {kind}: median {median(milliseconds):.0f} ms, worst {max(milliseconds):.0f} ms of "
            f"{len(milliseconds)} (goal: 100)"
        )
    benchmark.extra_info.update(paints=paints, ready=ready, taken=taken)


def interact(driver: Chrome, taken: dict[str, list[float]]) -> None:
    """Moves the pointer, uses keys, zooms, and selects allocations."""
    area = driver.find_element(By.CSS_SELECTOR, "#map-0 .canvas")
    driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", area
    )
    driver.execute_script(WATCH)
    select = driver.find_element(By.CSS_SELECTOR, "#map-0 select")
    select.send_keys(Keys.HOME)
    for step in range(-10, 11):
        pointer = ActionChains(driver, duration=0)
        pointer.move_to_element_with_offset(area, 30 * step, 15 * step).perform()
    for key in (
        Keys.HOME,
        Keys.ARROW_RIGHT,
        Keys.ARROW_DOWN,
        Keys.ARROW_UP,
        Keys.PAGE_DOWN,
        *"++--0",
    ):
        area.send_keys(key)
    driver.execute_script("return new Promise((done) => setTimeout(done, 100))")
    for kind, milliseconds in driver.execute_script("return taken"):
        taken.setdefault(kind, []).append(milliseconds)
