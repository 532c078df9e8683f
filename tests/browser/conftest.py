"""One browser per test module, and the reports that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xlapipe.cli import main

if TYPE_CHECKING:  # without selenium the tests are skipped
    from selenium.webdriver import Chrome

    from tests.browser.driving import Open


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    from tests.browser.chromium import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(driver: Chrome, tmp_path_factory: pytest.TempPathFactory) -> Open:
    """A function that writes a report of some dumps once, and loads it."""
    from tests.browser.chromium import set_theme

    pages: dict[tuple[Path, ...], Path] = {}

    def open_report(*paths: Path, theme: str = "light") -> Chrome:
        if paths not in pages:
            pages[paths] = tmp_path_factory.mktemp("report") / "report.html"
            assert main(["report", *map(str, paths), "--out", str(pages[paths])]) == 0
        driver.get_log("browser")
        driver.get_log("performance")
        set_theme(driver, theme)
        driver.get(pages[paths].as_uri())
        assert driver.execute_script("return document.documentElement.dataset.ready") == "true"
        return driver

    return open_report


@pytest.fixture(autouse=True)
def console_is_empty(driver: Chrome) -> Iterator[None]:
    """Checks that Chromium's console has no error and no violation of the page's policy."""
    yield
    assert [entry["message"] for entry in driver.get_log("browser")] == []
