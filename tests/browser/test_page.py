"""The HTML report in Chromium: no network, hostile names, tables, stages, contrast, themes.

Screenshots go to build/screenshots, in light and dark.
"""

import json
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.reports import HOSTILE, hostile_dump
from xlapipe.dump.dump import read_file

pytest.importorskip("selenium", reason="selenium is not installed: pip install xlapipe[browser]")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.browser.chromium import SCREENSHOTS, missing, screenshot
from tests.browser.driving import Open, choose, details, element, eventually, to_map, to_stages

PREFILL = f"qwen3-prefill/h200-cublas-jax{GOLDEN_JAXLIB}"
DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_the_page_makes_no_network_request(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / DECODE, goldens / PREFILL)
    to_map(driver)
    to_stages(driver)
    messages = [json.loads(item["message"])["message"] for item in driver.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        # The start page of Chromium may still be loading; no file can open or embed such a page.
        and not message["params"]["documentURL"].startswith(("chrome:", "chrome-untrusted:"))
    ]
    assert urls, "the log of requests is empty: the page itself should be in it"
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in urls) == 1


def test_names_stay_text(
    opened: Open, goldens: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    driver = opened(hostile_dump(goldens / DECODE, tmp_path_factory.mktemp("hostile") / "dump"))
    area = to_map(driver)
    choose(driver, "#map-0 select", "all allocations")
    area.send_keys(Keys.HOME, Keys.ENTER)
    assert HOSTILE in details(driver)["title"]
    assert any(HOSTILE in pane.text for pane in to_stages(driver))
    assert HOSTILE in element(driver, "h1").text
    assert driver.execute_script("return window.pwned") is None
    assert driver.find_elements(By.TAG_NAME, "img") == []


def test_injected_scripts_do_not_run(opened: Open, goldens: Path, driver: Chrome) -> None:
    opened(goldens / DECODE)
    refused = driver.execute_script(
        """
        const script = document.createElement("script");
        try {
          script.text = "window.pwned = 3";
          document.body.append(script);
        } catch (error) {
          return error.name;
        }
        return window.pwned ?? "not run";
        """
    )
    assert refused == "TypeError"  # the page allows no Trusted Type
    driver.get_log("browser")  # contains the refusal


def test_tables_sort(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / PREFILL)
    table = element(driver, "#time-0 table")
    (heading,) = (
        h for h in table.find_elements(By.TAG_NAME, "th") if h.text.startswith("bytes read")
    )
    button = heading.find_element(By.TAG_NAME, "button")

    def column() -> list[int]:
        script = """
        const index = arguments[1].cellIndex;
        return [...arguments[0].tBodies[0].rows].map(r => Number(r.cells[index].dataset.value));
        """
        return driver.execute_script(script, table, heading)

    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    button.send_keys(Keys.SPACE)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    assert len(set(column())) > 3


def test_stages(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / PREFILL)
    panes = to_stages(driver)

    def text(pane: WebElement) -> str:
        script = (
            "return [...arguments[0].querySelectorAll('pre')].map(p => p.textContent).join('\\n')"
        )
        return driver.execute_script(script, pane)

    for pane, name in zip(
        panes, ("before_optimizations.txt", "after_optimizations.txt"), strict=True
    ):
        assert text(pane) == read_file(goldens / PREFILL, name).decode()
    area = to_map(driver)
    area.send_keys(Keys.HOME, Keys.ENTER)
    name = details(driver)["value"].partition("{")[0]
    element(driver, "#map-0 .details button").click()
    selected = eventually(lambda: driver.execute_script("return getSelection().toString()"))
    assert selected == f"{name} = "
    top = driver.execute_script("return arguments[0].scrollTop", panes[1])
    line = text(panes[1]).split(f"{name} = ")[0].count("\n")
    assert 0 <= line * 16 - top < 500, "the selected line is visible"


def test_two_dumps(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / DECODE, goldens / DECODE.replace("cublas", "triton"))
    difference = element(driver, "#difference").text
    assert "-4,147,704 B" in difference
    assert element(driver, "#subject-1").is_displayed() is False
    element(driver, "button[data-subject='1']").click()
    assert element(driver, "#subject-0").is_displayed() is False
    assert "391,546,196 B" in element(driver, "#summary-1").text
    assert element(driver, "#map-1 .canvas").is_displayed()
    assert element(driver, "a[data-section=gemms]").get_attribute("href").endswith("#gemms-1")
    screenshot(driver, SCREENSHOTS / "difference-light.png")


def test_without_javascript(opened: Open, goldens: Path, driver: Chrome) -> None:
    opened(goldens / DECODE)
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.refresh()
        assert "395,693,900 B" in element(driver, "#summary-0").text
        assert "The map needs JavaScript" in element(driver, "#map-0").text
        assert "cublaslt" in element(driver, "#gemms-0").text
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


TEXTS = Path(__file__).with_name("texts")
CONTRAST = (TEXTS / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_legible(opened: Open, goldens: Path, theme: str) -> None:
    driver = opened(goldens / PREFILL, goldens / DECODE, theme=theme)
    seen, poor = driver.execute_script(CONTRAST)
    assert seen > 300
    assert poor == [], "WCAG asks for a contrast of 4.5"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screenshots(opened: Open, goldens: Path, theme: str) -> None:
    driver = opened(goldens / PREFILL, theme=theme)
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 21, 27)"}[theme]
    screenshot(driver, SCREENSHOTS / f"first-screen-{theme}.png")
    area = to_map(driver)
    area.send_keys(Keys.HOME, Keys.ENTER)
    screenshot(driver, SCREENSHOTS / f"map-{theme}.png")
    painted = "return new Set(arguments[0].getContext('2d').getImageData(0, 0, 800, 400).data).size"
    assert driver.execute_script(painted, element(driver, "#map-0 canvas")) > 20
    for name in ("donation", "gemms"):
        driver.execute_script(
            f"document.getElementById('{name}-0').scrollIntoView({{behavior: 'instant'}})"
        )
        screenshot(driver, SCREENSHOTS / f"{name}-{theme}.png")


def assert_unfolded_rows_fit(driver: Chrome, width: int) -> None:
    """Opens every group of values: each is listed, and nothing is wider than the screen."""
    folded, right = driver.execute_script(
        """
        const groups = [...document.querySelectorAll("#peak-0 .ranked details")];
        const folded = groups.filter((group) => !group.open).length;
        for (const group of groups) group.open = true;
        const rows = [...document.querySelectorAll("#peak-0 .ranked details li")];
        return [groups.length > 0 && rows.length > groups.length && folded === groups.length,
                Math.max(...rows.map((row) => row.getBoundingClientRect().right),
                         document.documentElement.scrollWidth)];
        """
    )
    assert folded
    assert right <= width


def test_a_phone_shows_the_bytes_and_needs_no_scrolling_aside(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / PREFILL)
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        driver.refresh()
        width, cells = driver.execute_script(
            """
            const cells = [...document.querySelectorAll("#peak-0 .ranked td.number:nth-child(2)")];
            return [document.documentElement.scrollWidth,
                    cells.slice(0, 20).map((cell) => cell.getBoundingClientRect().right)];
            """
        )
        assert width <= 390
        assert cells and all(0 < right <= 390 for right in cells)
        assert_unfolded_rows_fit(driver, 390)
        screenshot(driver, SCREENSHOTS / "phone-light.png")
        element(driver, "#peak-0 h2").location_once_scrolled_into_view  # noqa: B018
        screenshot(driver, SCREENSHOTS / "phone-peak-light.png")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_theme_can_be_chosen(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / DECODE, theme="light")
    button = element(driver, "#theme")
    assert button.text == "Dark"
    button.click()
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(18, 21, 27)"
    assert button.text == "Light"


def test_the_timeline_selects_and_zooms_by_keys(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / PREFILL)
    area = element(driver, ".timeline .canvas")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
    area.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    text = element(driver, ".timeline [role=status]").text
    data = json.loads(
        driver.execute_script("return document.getElementById('timeline-data-0').textContent")
    )
    assert text.startswith(
        f"{data['names'][data['name'][1]]} · {data['streams'][data['stream'][1]]} · "
    )
    drawn = "return arguments[0].querySelector('canvas').toDataURL()"
    before = driver.execute_script(drawn, area)
    area.send_keys("+")
    assert driver.execute_script(drawn, area) != before
    area.send_keys("0")
    assert driver.execute_script(drawn, area) == before
    screenshot(driver, SCREENSHOTS / "timeline.png")
