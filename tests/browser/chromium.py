"""A headless Chromium without network and with a temporary profile."""

import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

# CI stores this folder.
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # as root, Chromium refuses to start with one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    # No host name is resolved.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def missing() -> str | None:
    """Why Chromium cannot be controlled here; None if it can."""
    for program, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver")):
        if shutil.which(program) is None:
            return f"no {program} in PATH: apt-get install {package}"
    return None


@contextmanager
def chromium(width: int = 1360, height: int = 900) -> Iterator[webdriver.Chrome]:
    """A browser with logs of console messages and network events."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.add_argument(f"--window-size={width},{height}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(
            options=options, service=Service(executable_path=str(shutil.which("chromedriver")))
        )
        try:
            yield driver
        finally:
            driver.quit()


def set_theme(driver: webdriver.Chrome, theme: str) -> None:
    """The system's preference, `light` or `dark`."""
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": theme}]},
    )


def screenshot(driver: webdriver.Chrome, path: Path, *, whole: bool = False) -> None:
    """Writes a picture of the window, or of the whole page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": whole})
    path.write_bytes(base64.b64decode(result["data"]))
