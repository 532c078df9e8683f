"""Helpers of the browser tests to use a page."""

import time
from collections.abc import Callable
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

Open = Callable[..., Chrome]


def element(driver: Chrome, selector: str) -> WebElement:
    return driver.find_element(By.CSS_SELECTOR, selector)


def details(driver: Chrome) -> dict[str, str]:
    """The contents of the panel next to the map."""
    texts = driver.execute_script(
        """
        const panel = document.querySelector("#map-0 .details");
        const texts = (tag) => [...panel.querySelectorAll(tag)].map((each) => each.textContent);
        return [texts("h3"), texts("dt"), texts("dd")];
        """
    )
    (title,), names, values = texts
    return {"title": title, **dict(zip(names, values, strict=True))}


def to_map(driver: Chrome) -> WebElement:
    """Scrolls to the map, without animation."""
    area = element(driver, "#map-0 .canvas")
    driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", area
    )
    return area


def to_stages(driver: Chrome) -> list[WebElement]:
    """Scrolls to the compiler's texts; returns both panes when they contain text."""
    driver.execute_script("document.getElementById('stages').scrollIntoView({behavior: 'instant'})")

    def filled() -> list[WebElement]:
        panes = driver.find_elements(By.CSS_SELECTOR, ".text:has(pre)")
        return panes if len(panes) == 2 else []

    panes: list[WebElement] = eventually(filled)
    return panes


def choose(driver: Chrome, selector: str, text: str) -> None:
    """Selects the option whose text starts with `text`."""
    select = element(driver, selector)
    for option in select.find_elements(By.TAG_NAME, "option"):
        if option.text.startswith(text):
            option.click()
            return
    raise AssertionError(f"no option {text!r}")


def eventually(check: Callable[[], Any], seconds: float = 5) -> Any:
    """The first true result of `check`."""
    until = time.monotonic() + seconds
    while True:
        answer = check()
        if answer or time.monotonic() > until:
            assert answer
            return answer
        time.sleep(0.02)


def in_page(driver: Chrome, script: str) -> Any:
    """Runs `script` with the functions of the page, on the layout of all allocations."""
    code = driver.execute_script(
        "return document.querySelector('script[type=module]').text.split('const maps = ')[0]"
    )
    prepared = """
        const plan = readBuffers(readJson("allocations-0"), readJson("map-data-0"));
        const layout = layOut(scopesOf(plan).scopes[0]);
    """
    return driver.execute_script(code + prepared + script)
