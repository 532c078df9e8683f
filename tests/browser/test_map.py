"""The map of the report in Chromium: pointer and keyboard."""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB

pytest.importorskip("selenium", reason="selenium is not installed: pip install xlapipe[browser]")

from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import SCREENSHOTS, missing, screenshot
from tests.browser.driving import Open, choose, details, element, in_page, to_map
from tests.shared import tpu_texts
from tests.shared.dumps import SEED_003, needs_seed_003
from xlapipe.dump.time_record import read_time_record

ROOT = Path(__file__).parents[2]
PREFILL = f"qwen3-prefill/h200-cublas-jax{GOLDEN_JAXLIB}"
TIMED = f"qwen3-prefill/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_pointer(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / PREFILL)
    area = to_map(driver)
    choose(driver, "#map-0 select", "all allocations")
    # The embedding takes most of the height, and is alive throughout.
    move = ActionChains(driver, duration=0).move_to_element_with_offset(area, 40, -30)
    move.perform()
    shown = details(driver)
    assert shown["title"] == "params['embed']['weight']"
    assert shown["size"] == "296.8 MiB (311,164,928 B)"
    assert shown["shape"] == "bf16[151936,1024]{1,0}"
    assert shown["source"] == "models/qwen3/modules/embedding.py:20"
    assert shown["role"] == "parameter"
    assert shown["alive"].startswith("positions 0 (")
    move.click().perform()
    ActionChains(driver, duration=0).move_to_element(element(driver, "h2")).perform()
    assert details(driver)["title"] == "params['embed']['weight']", "a click pins"
    assert "Pinned" in element(driver, "#map-0 .details .pin").text


def test_a_map_for_each_memory_of_a_tpu(opened: Open, tmp_path: Path) -> None:
    """The device's map has HBM alone."""
    driver = opened(tpu_texts.write_dump(tmp_path / "tpu"))
    options = driver.find_elements("css selector", "#map-0 select option")
    names = [option.get_attribute("textContent") for option in options]
    assert names[:5] == [
        "all allocations, 436.5 KiB",
        "temp and outputs, 32.0 KiB",
        "VMEM, 400.0 KiB",
        "other memory, 4 B",
        "allocation 6: temp in VMEM, 400.0 KiB",
    ]


def test_every_value_is_hit_where_it_is_drawn(opened: Open, goldens: Path) -> None:
    """The centre of each rectangle hits its value, as in a search through all values."""
    wrong, placed, values = in_page(
        opened(goldens / PREFILL),
        """
        let wrong = 0;
        for (const buffer of layout.placed) {
          if (!buffer.bytes) continue;
          const position = (buffer.start + buffer.end) / 2;
          const address = topOf(layout, buffer) + buffer.bytes / 2;
          const holding = layout.placed.filter((each) => {
            const top = topOf(layout, each);
            return each.start <= position && position < each.end
              && top <= address && address < top + each.bytes;
          });
          const last = Math.max(...holding.map((each) => each.start));
          const found = hit(layout, position, address);
          const right = holding.includes(buffer) && holding.includes(found) && found.start === last;
          if (!right) wrong += 1;
        }
        const all = plan.allocations.flatMap((each) => each.values);
        return [wrong, layout.placed.length, all.length];
        """,
    )
    assert values == placed > 100
    assert wrong == 0


def test_keys_reach_every_value(opened: Open, goldens: Path) -> None:
    """PgDn and PgUp reach all values, the arrows nearly all."""
    reached, by_arrows, placed = in_page(
        opened(goldens / DECODE),
        """
        const map = Object.assign(Object.create(MemoryMap.prototype), { layout });
        const arrows = [[1, 0], [-1, 0], [0, 1], [0, -1]];
        const reach = (moves) => {
          const pending = [map.largest()];
          const seen = new Set(pending);
          while (pending.length) {
            const from = pending.pop();
            for (const to of moves(from)) {
              if (to && !seen.has(to)) { seen.add(to); pending.push(to); }
            }
          }
          return seen.size;
        };
        return [
          reach((from) => [map.inTurn(from, 1), map.inTurn(from, -1)]),
          reach((from) => arrows.map((by) => map.neighbour(from, ...by))),
          layout.placed.filter((each) => each.bytes > 0).length,
        ];
        """,
    )
    assert reached == placed > 100
    assert by_arrows > 0.9 * placed


def seconds_by_kernel(goldens: Path) -> Mapping[str, float]:
    record = read_time_record(goldens / TIMED)
    assert record is not None
    return record.seconds_of


def test_values_are_coloured_by_the_time_of_their_kernel(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / TIMED)
    canvas = element(driver, "#map-0 canvas")
    pixels = "return arguments[0].toDataURL()"
    by_role = driver.execute_script(pixels, canvas)
    choose(driver, "#map-0 select.color", "measured time")
    assert driver.execute_script(pixels, canvas) != by_role
    legend = element(driver, "#map-0 .details .legend").text
    longest = max(seconds_by_kernel(goldens).values())
    assert f"{longest * 1e6:.3g} µs" in legend
    assert f"{longest * 1e3:.3g} µs or less" in legend, "three powers of ten"
    screenshot(driver, SCREENSHOTS / "map-by-time.png")
    choose(driver, "#map-0 select.color", "role")
    assert driver.execute_script(pixels, canvas) == by_role


@pytest.mark.parametrize(
    ("kind", "named"),
    [("purpose", "updated in place"), ("source line", "models/qwen3/"), ("module", "layers_*/")],
)
def test_values_are_coloured_by_what_their_author_names(
    opened: Open, goldens: Path, kind: str, named: str
) -> None:
    driver = opened(goldens / DECODE)
    canvas = element(driver, "#map-0 canvas")
    by_role = driver.execute_script("return arguments[0].toDataURL()", canvas)
    choose(driver, "#map-0 select.color", kind)
    assert driver.execute_script("return arguments[0].toDataURL()", canvas) != by_role
    assert named in element(driver, "#map-0 .details .legend").text


def test_a_click_selects_in_the_map_and_in_the_table(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / DECODE)
    button = element(driver, "#peak-0 [data-select]")
    name = button.get_attribute("data-select")
    driver.execute_script("arguments[0].click()", button)
    assert details(driver)["value"] == name
    assert "Pinned" in element(driver, "#map-0 .details .pin").text
    selected = driver.find_elements("css selector", "#peak-0 button.selected")
    assert [item.get_attribute("data-select") for item in selected] == [name]
    ActionChains(driver, duration=0).send_keys_to_element(to_map(driver), Keys.ESCAPE).perform()
    assert driver.find_elements("css selector", "#peak-0 .selected") == []


def test_the_passes_of_a_training_step_are_marked(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / f"qwen3-train/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}")
    phases, drawn = in_page(
        driver,
        """
        const canvas = document.querySelector("#map-0 canvas");
        const context = canvas.getContext("2d");
        const drawn = [];
        const fillText = context.fillText.bind(context);
        context.fillText = (text, ...at) => { drawn.push(text); fillText(text, ...at); };
        window.dispatchEvent(new Event("resize"));
        document.querySelector("#map-0 select.color").dispatchEvent(new Event("change"));
        return [readJson('map-data-0').phases, drawn];
        """,
    )
    assert {"forward", "backward", "peak"} <= set(drawn)
    assert any(text.startswith("schedule position") for text in drawn), "the axis has a label"
    assert {phase for phase, _, _ in phases} == {"forward", "backward", "update"}
    assert phases[0][0] == "forward"
    assert all(before[2] == after[1] for before, after in pairwise(phases))


def test_a_selected_value_has_its_purpose_end_and_call_chain(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / DECODE)
    to_map(driver).send_keys(Keys.HOME)
    choose(driver, "#map-0 select", "temp and outputs")
    to_map(driver).send_keys(Keys.HOME)
    shown = details(driver)
    assert shown["purpose"] == "workspaces"
    assert shown["kept until"].startswith("models/qwen3/")
    assert re.search(r"models/qwen3/modules/\w+\.py:\d+ in ", shown["call chain"])


def test_the_longest_kernel_has_the_hottest_colour(opened: Open, goldens: Path) -> None:
    hottest, unknown, parameters = in_page(
        opened(goldens / TIMED),
        """
        const colors = readColors();
        const timed = plan.buffers.filter(({ seconds }) => seconds);
        const longest = Math.max(...timed.map(({ seconds }) => seconds));
        const name = (buffer) => buffer.name;
        const fill = (buffer) => heatOf(buffer, colors, longest);
        const withFill = (wanted) => plan.buffers.filter((buffer) => fill(buffer) === wanted);
        return [
          withFill(colors.heat.at(-1)).map(name),
          withFill(colors.unknown).every(({ seconds }) => !seconds),
          withFill(colors.unknown).filter(({ role }) => role === "parameter").length,
        ];
        """,
    )
    seconds_of = seconds_by_kernel(goldens)
    longest = max(seconds_of, key=lambda name: seconds_of[name])
    assert longest in hottest
    assert all(seconds_of[name] > seconds_of[longest] / 2 for name in hottest)
    assert unknown, "no kernel, no time"
    assert parameters > 10, "no kernel defines a parameter"


def test_keyboard_alone(opened: Open, goldens: Path) -> None:
    driver = opened(goldens / PREFILL)
    for _ in range(200):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        if driver.execute_script("return document.activeElement.classList.contains('canvas')"):
            break
    else:
        raise AssertionError("Tab does not reach the map")
    active = driver.switch_to.active_element
    assert active.get_attribute("aria-label").startswith("Map of temp and outputs")
    outline = driver.execute_script("return getComputedStyle(arguments[0]).outlineStyle", active)
    assert outline != "none", "focus is visible"

    active.send_keys(Keys.HOME)
    first = details(driver)
    assert first["size"].startswith("4.00 MiB")
    spoken = element(driver, "#map-0 [role=status]").text
    assert first["title"] in spoken
    assert "4,194,304 B" in spoken
    seen = {first["value"]}
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN):
        active.send_keys(key)
        seen.add(details(driver)["value"])
    assert len(seen) == 5, "each arrow selects a different value"
    active.send_keys(Keys.ARROW_UP)
    back = details(driver)
    active.send_keys(Keys.ENTER)
    assert "Pinned" in element(driver, "#map-0 .details .pin").text
    assert details(driver) == back
    active.send_keys("+", "+", "0", Keys.ESCAPE)
    assert element(driver, "#map-0 .details h3").text == "No value selected"


def test_a_dump_without_live_ranges(opened: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    (proto,) = (ROOT / "tests/data/jaxlib-0.11.2/step").glob("*.hlo.pb.gz")
    alone = tmp_path_factory.mktemp("proto") / proto.name
    alone.write_bytes(proto.read_bytes())
    driver = opened(alone)
    assert "has no live ranges" in element(driver, "#map-0 .note").text
    area = to_map(driver)
    area.send_keys(Keys.HOME)
    assert details(driver)["size"] == "32.0 KiB (32,768 B)"
    assert details(driver)["alive"] == "unknown, or throughout the program"


@needs_seed_003
def test_reference_dump(opened: Open) -> None:
    driver = opened(SEED_003)
    assert "932,847,568 B" in element(driver, "#summary-0").text
    area = to_map(driver)
    area.send_keys(Keys.HOME)
    assert details(driver)["size"] == "296.8 MiB (311,164,928 B)"
    screenshot(driver, SCREENSHOTS / "reference-light.png")
