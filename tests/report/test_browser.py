"""The report in a real browser: it works when clicked, fits a phone, fetches nothing, and lets no file name run."""

import base64
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from arht.cli import main
from tests.report.conftest import EVIL

PHONE, DESK = 390, 1280
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update "
    "disable-sync hide-scrollbars"
)


def program(*names):
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = program("chromium", "chromium-browser", "google-chrome"), program("chromedriver")
    if not chromium or not driver:
        assert os.environ.get("ARHT_BROWSER") != "required", "Chromium and its driver must be here, and are not"
        pytest.skip("no Chromium with chromedriver on the PATH (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options, Service(driver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def path(scores_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", str(scores_file), "--out", str(out), "--images", "digits"]) == 0
    return out


@pytest.fixture
def page(browser, path):
    """The report, freshly opened, at the width of a desk."""
    browser.get_log("performance")
    browser.get_log("browser")
    resize(browser, DESK)
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    yield browser
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None


def resize(browser, width):
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def find(browser, query):
    return browser.find_element("css selector", query)


def click(browser, query):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", find(browser, query))
    find(browser, query).click()


def choose(browser, name, value):
    click(browser, f"label:has(input[name={name}][value='{value}']) span")


def shown(browser, query):
    return [element.text for element in browser.find_elements("css selector", query) if element.is_displayed()]


def record_of(browser):
    return json.loads(browser.execute_script("return document.getElementById('record').textContent"))["report"]


def test_switching_the_decision_changes_the_whole_page(page):
    decisions = record_of(page)["decisions"]
    flagged = {(entry["method"], entry["fdr"]): entry["rejected"] for entry in decisions}
    assert flagged["bh", 0.2] > flagged["by", 0.2]
    assert shown(page, "h1") == [f"{flagged['bh', 0.2]} of 599 queries flagged"]
    assert shown(page, "td.decision")[:1] == ["flagged"]
    assert shown(page, ".cut-label") == ["flagged from here on"]
    assert len(shown(page, ".gallery .flag")) == 10
    choose(page, "method", "by")
    assert shown(page, "h1") == [f"{flagged['by', 0.2]} of 599 queries flagged"]
    assert find(page, "#status").text == f"{flagged['by', 0.2]} of 598 tested queries flagged"
    assert find(page, "#decisions tr[aria-current]").text.startswith("20 % BY")
    assert len(shown(page, "#decisions tr[aria-current]")) == 1
    choose(page, "method", "bh")
    choose(page, "fdr", "0.01")
    assert shown(page, "h1") == [f"{flagged['bh', 0.01]} of 599 queries flagged"]
    if flagged["bh", 0.01] == 0:
        assert "flagged" not in shown(page, "td.decision")
        assert shown(page, ".cut-label") == []
        assert shown(page, ".gallery .flag") == []


def test_the_table_sorts_filters_and_goes_on(page):
    def column(place):
        cells = page.find_elements("css selector", f"#table tbody tr:not([hidden]) > :nth-child({place})")
        return [cell.text for cell in cells]

    assert len(column(3)) == 25
    scores = [float(text) for text in column(3)]
    assert scores == sorted(scores, reverse=True)
    click(page, "th[data-sort=score] button")
    assert find(page, "th[data-sort=score]").get_attribute("aria-sort") == "descending"
    click(page, "th[data-sort=score] button")
    low = [float(text) for text in column(3)]
    assert low == sorted(low)
    assert low[0] < scores[-1]
    click(page, "th[data-sort=name] button")
    names = [int(text.split()[-1]) for text in column(2) if text.startswith("image ")]
    assert names == sorted(names)  # by the number in the name, not by its letters
    click(page, "#more")
    assert len(column(3)) == 125
    find(page, "#find").send_keys("image 59")
    assert all("image 59" in text for text in column(2))
    find(page, "#find").clear()
    click(page, "#which option[value=untested]")
    assert column(2) == ["image 5"]
    assert column(4) == ["not available"]


def test_a_query_opens_and_shows_its_picture_and_its_columns(page):
    assert find(page, "button.open").text == EVIL
    click(page, "button.open")
    assert find(page, "button.open").get_attribute("aria-expanded") == "true"
    inside = find(page, "tr.detail")
    assert EVIL in inside.text
    picture = inside.find_element("css selector", "img")
    assert page.execute_script("return arguments[0].naturalWidth", picture) == 8
    assert "nearest class" in inside.text
    click(page, "button.open")
    assert not page.find_elements("css selector", "tr.detail")


def test_a_number_says_which_field_it_is_and_the_record_can_be_saved(page, tmp_path):
    click(page, ".facts data[data-field='/report/queries/untested']")
    assert find(page, "#field").get_attribute("textContent") == "/report/queries/untested = 1"
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    click(page, "#download")
    saved = tmp_path / "arht-report-record.json"
    for _ in range(100):
        if saved.exists():
            break
        time.sleep(0.05)
    assert json.loads(saved.read_text())["report"] == record_of(page)


def test_nothing_is_requested_but_the_file_itself(page, path):
    click(page, "button.open")
    entries = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"}
    assert path.as_uri() in asked
    assert {address for address in asked if not address.startswith("data:")} == {path.as_uri()}


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_reads(page, width, scheme, tmp_path):
    resize(page, width)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    click(page, "button.open")
    wide = """
      const over = [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility()
        && !e.closest('.hidden, .skip, svg') && e.getBoundingClientRect().right > innerWidth + 1);
      return [document.documentElement.scrollWidth, over.map((e) => e.outerHTML.slice(0, 80))]"""
    assert page.execute_script(wide) == [width, []]
    ratios = page.execute_script(CONTRAST)
    assert len(ratios) > 100
    assert min(ratios)[0] >= 4.5, min(ratios)
    figure = find(page, "#scores svg." + ("narrow" if width == PHONE else "wide"))
    assert figure.is_displayed()
    assert len(shown(page, "#scores svg")) == 1
    smallest = """
      return Math.min(...[...document.querySelectorAll('svg text')].filter((e) => e.getBoundingClientRect().height > 0)
        .map((e) => parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)))"""
    assert page.execute_script(smallest) > 10
    height = page.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
    taken = page.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    folder = Path(os.environ.get("ARHT_SCREENSHOTS", tmp_path))
    shot = folder / f"report-{width}-{scheme}.png"
    shot.write_bytes(base64.b64decode(taken["data"]))
    from PIL import Image

    with Image.open(shot) as opened:
        pixels = np.asarray(opened.convert("L"), dtype=float)
    assert pixels.shape == (clip["height"], width)
    assert np.median(pixels) > 200 if scheme == "light" else np.median(pixels) < 60
    assert pixels.std() > 15


CONTRAST = """
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (colour) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data]; };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => { const [r, g, b] = c.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('script, style, title, desc, .hidden, .skip')) continue;
    let back = e, ground = [0, 0, 0, 0];
    while (back && ground[3] === 0) { ground = rgb(getComputedStyle(back).backgroundColor); back = back.parentElement; }
    const style = getComputedStyle(e);
    const ink = rgb(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink.slice(0, 3)), light(ground.slice(0, 3))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 90)]);
  }
  return found;
"""
"""Contrast ratio (WCAG 2) of every visible text with the ground behind it."""
