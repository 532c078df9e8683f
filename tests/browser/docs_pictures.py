"""Takes the pictures of `docs/first_plan.md` from a report.

python -m tests.browser.docs_pictures examples/flax_training/hlo_dumps/classifier/DUMP
"""

import base64
import sys
import tempfile
from pathlib import Path

from selenium import webdriver

from tests.browser.chromium import chromium, set_theme
from xlapipe.cli import main as xlapipe

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {"first_plan_map": "#map-0 .canvas"}


def take(driver: webdriver.Chrome, selector: str) -> bytes:
    """A picture of one element."""
    area = driver.execute_script(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height};",
        selector,
    )
    settings = {"captureBeyondViewport": True, "clip": {**area, "scale": 1}}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", settings)["data"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium(width=1100) as driver:
        page = Path(folder) / "report.html"
        if xlapipe(["report", sys.argv[1], "--out", str(page)]):
            sys.exit(2)
        set_theme(driver, "light")
        driver.get(page.as_uri())
        for name, selector in PICTURES.items():
            (IMAGES / f"{name}.png").write_bytes(take(driver, selector))


if __name__ == "__main__":
    main()
