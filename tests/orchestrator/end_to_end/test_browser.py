"""A sweep in MLflow's real UI and the report's page, in a real browser.

Needs Chromium and its driver (Debian: chromium, chromium-driver). Screenshots are kept in the test's temporary folder.
"""

import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import matplotlib.image
import numpy as np
import psutil
import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from orchestrator.plan.plan import Trial
from orchestrator.protocol.metrics import Interval
from orchestrator.report import write
from orchestrator.report.charts import Chart, Panel, Series
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.html_page import page as report_page
from orchestrator.system.processes import is_alive
from orchestrator.tracking.reader import ConfigurationRuns, SweepRuns
from tests.orchestrator import synthetic_sweep as synthetic

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs chromium and chromedriver: apt-get install chromium chromium-driver",
)

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--window-size=1600,1300",
)  # fmt: skip
PATIENCE_S = 180
NAME = "a sweep <b>&amp; more</b></script>"


class Page:
    """A browser with the searches for text and elements that a user would make."""

    def __init__(self, driver, shots):
        self.driver, self.shots = driver, shots

    def until(self, condition, what):
        """Wait for a condition; a failure leaves a screenshot."""
        try:
            return WebDriverWait(self.driver, PATIENCE_S, 0.2, ignored_exceptions=(Exception,)).until(condition)
        except TimeoutException:
            self.shot("failed")
            pytest.fail(f"{what} did not appear within {PATIENCE_S} s: see {self.shots}/failed.png")

    def find(self, css):
        """The first visible element that matches."""

        def first(driver):
            return next((each for each in driver.find_elements(By.CSS_SELECTOR, css) if each.is_displayed()), None)

        return self.until(first, css)

    def says(self, text):
        self.until(lambda driver: text in driver.find_element(By.TAG_NAME, "body").text, f"the text {text}")

    def click(self, text, kind="*"):
        """Click on the innermost element of this kind with this text."""

        def clicked(driver):
            elements = driver.find_elements(By.XPATH, f'//{kind}[normalize-space(.)="{text}"]')
            shown = [each for each in elements if each.is_displayed()]
            if shown:
                shown[-1].click()
            return bool(shown)

        self.until(clicked, f"{text}, to be clicked,")

    def painted(self, name, least=0.001):
        """The share of coloured pixels when it is at least `least`, and the same twice."""
        before = []

        def same_again(driver):
            before.append(coloured(self.shot(name)))
            return before[-1] >= 0.99 * least and before[-1] in before[-2:-1]

        self.until(same_again, f"a page with colours ({name})")
        return before[-1]

    def shot(self, name):
        """Save a screenshot; return its pixels [height, width, 3]."""
        path = self.shots / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return matplotlib.image.imread(path)[..., :3]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Page(driver, tmp_path_factory.mktemp("screenshots"))
    driver.quit()


@dataclass
class Tracked:
    uri: str
    parent_id: str
    out: Path


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Three configurations of three seeds, with their report."""
    folder = tmp_path_factory.mktemp("tracked")
    uri = synthetic.new_database(folder)
    trials = [Trial(synthetic.configuration("foml", K=k), (0, 1, 2)) for k in (1, 5)]
    trials.append(Trial(synthetic.configuration("online"), (0, 1, 2)))
    sweep = synthetic.make_sweep(folder / "results", NAME, *trials)
    parent_id = synthetic.write_all(sweep, uri, "my experiment")
    write.write_report(NAME, uri, folder / "out")
    return Tracked(uri, parent_id, folder / "out")


@pytest.fixture(scope="module")
def link(tracked, tmp_path_factory):
    """The link that `foml ui` prints, while its server runs."""
    words = [NAME, "--tracking-uri", tracked.uri, "--port", str(synthetic.free_port()), "--no-browser"]
    folder = tmp_path_factory.mktemp("server")
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "orchestrator.ui", *words]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), (folder / "log").read_text()
        servers = psutil.Process(process.pid).children(recursive=True)
        yield line.strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not any(map(is_alive, servers)), "the server ends with the command"
        assert (folder / "log").read_text() == f"{NAME}: MLflow starts; Ctrl-C ends it\n"
        assert [path.name for path in folder.iterdir()] == ["log"]
    finally:
        process.kill()


@pytest.fixture(scope="module")
def server(link):
    return link.partition("/#")[0]


def coloured(pixels):
    """The share of pixels that are neither white nor grey."""
    return float((np.ptp(pixels, axis=-1) > 0.15).mean())


def test_the_sweep_in_mlflows_ui(page, server, tracked):
    driver = page.driver
    # From the list of experiments to the sweep,
    driver.get(f"{server}/#/experiments")
    page.click("Model training")
    page.click("my experiment", "a")
    page.says("matching runs")
    page.says(NAME)
    page.shot("1 the experiment")
    page.click(NAME, "a")
    # whose description is the table,
    page.says("Description")
    page.says("Best: foml K=")
    page.says("configurations complete")
    page.shot("2 the sweep")
    # to a configuration, with its options
    page.click("foml K=5", "a")
    page.until(lambda driver: tracked.parent_id not in driver.current_url, "the configuration's page")
    page.says("foml K=5")
    page.says("alpha1")
    page.says("validation_error")
    page.shot("3 a configuration")
    # and curves,
    page.click("Model metrics", "button")
    page.says("cumulative_error")
    page.find(".js-plotly-plot .scatterlayer .js-line")
    page.until(lambda driver: coloured(page.shot("4 its curves")) > 0.001, "its curves")
    # and back to the figure and the page among the sweep's artifacts.
    driver.get(f"{server}/#/experiments/1/runs/{tracked.parent_id}/artifacts")
    page.click("report")
    page.click("learning_curves.png")
    picture = page.find("img[src*='blob:'], img[src*='learning_curves']")
    page.until(lambda driver: driver.execute_script("return arguments[0].naturalWidth", picture) == 2160, "the picture")
    page.shot("5 the figure")
    page.click("report.html")
    driver.switch_to.frame(page.find("iframe"))
    page.says("Configurations")
    page.until(lambda driver: driver.execute_script("return Bokeh.documents.length"), "Bokeh's charts")
    driver.switch_to.default_content()
    page.shot("6 the page")


def test_the_link_of_foml_ui_overlays_all_configurations(page, link):
    """After the test above: MLflow keeps the link's filter for the experiment."""
    driver = page.driver
    driver.get(link)
    page.says("3 matching runs")
    order = ["foml K=5", "online", "foml K=1"]  # by objective
    names = (
        "return [...document.querySelectorAll('.ag-pinned-left-cols-container [role=row]')].map(row => row.innerText)"
    )
    page.until(
        lambda driver: [text.split("\n")[-1] for text in driver.execute_script(names)] == order, "runs by objective"
    )
    colours = (
        "const lines = document.querySelector('.js-plotly-plot').querySelectorAll('.scatterlayer path.js-line');"
        "return [...new Set([...lines].map(line => line.style.stroke))].length"
    )
    page.until(lambda driver: driver.execute_script(colours) == 3, "lines of three colours in one chart")
    page.says("foml K=5 (interval/")  # MLflow shows the section of the intervals first
    page.shot("0 the link")


def test_the_reports_page_from_disk(page, tracked):
    driver = page.driver
    driver.get_log("browser")
    driver.get((tracked.out / "report.html").as_uri())
    assert driver.title == NAME and page.find("h1").text == NAME
    page.until(lambda driver: driver.execute_script("return Bokeh.documents[0]?.is_idle"), "Bokeh's charts")
    time.sleep(0.5)  # for late requests
    resources = driver.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert [name for name in resources if not re.match("data:|blob:|file:", name)] == []
    assert [line for line in driver.get_log("browser") if line["level"] == "SEVERE"] == []
    table = page.find("table").text
    assert "foml" in table and "K=5" in table and "±" in table
    for chart in ("learning_curves", "adaptation", "ablation_K", "cost", "effects"):
        assert driver.find_elements(By.CSS_SELECTOR, f"#{chart} .bk-Figure, #{chart} [data-root-id]"), chart

    curves = page.find("#learning_curves")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", curves)
    everything = page.painted("7 from disk")
    boxes = driver.find_elements(By.CSS_SELECTOR, "#series input")
    assert len(boxes) == 3
    shown = "return owned[arguments[0]].map(id => Bokeh.documents[0].get_model_by_id(id).visible)"
    boxes[0].click()
    page.until(lambda driver: set(driver.execute_script(shown, 0)) == {False}, "a series switched off")
    assert set(driver.execute_script(shown, 1)) == {True}
    page.click("none", "button")
    page.until(lambda driver: coloured(page.shot("8 nothing switched on")) < 0.5 * everything, "nothing switched on")
    page.click("all", "button")
    page.until(lambda driver: set(driver.execute_script(shown, 0)) == {True}, "everything switched on")
    page.painted("9 all switched on", everything)

    # Zoom: a box drawn over the left panel.
    limits = "const r = Bokeh.documents[0].get_model_by_id(arguments[0]).x_range; return [r.start, r.end]"
    panel = curves.find_element(By.CSS_SELECTOR, "#learning_curves > div")
    root = panel.find_element(By.CSS_SELECTOR, "[data-root-id]").get_attribute("data-root-id")
    before = driver.execute_script(limits, root)
    ActionChains(driver).move_to_element_with_offset(panel, -80, -40).click_and_hold().move_by_offset(
        90, 60
    ).release().perform()
    page.until(lambda driver: driver.execute_script(limits, root) != before, "the zoom")
    after = driver.execute_script(limits, root)
    assert before[0] < after[0] < after[1] < before[1]
    page.shot("10 zoomed")


@pytest.fixture
def screen(page):
    """Sets the size and the colour scheme of the browser's screen; the test's end resets both."""

    def resize(width, scheme):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    yield resize
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_a_desk_by_day_and_by_night(page, screen, tracked, width, scheme):
    driver = page.driver
    screen(width, scheme)
    driver.get((tracked.out / "report.html").as_uri())
    page.until(lambda driver: driver.execute_script("return Bokeh.documents[0]?.is_idle"), "Bokeh's charts")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width, "nothing is cut off"
    charts = driver.find_elements(By.CSS_SELECTOR, "#learning_curves > div")
    left, right = (chart.rect for chart in charts)
    assert 340 < left["width"] < min(width, 600)
    assert (left["y"] < right["y"]) == (width == 390), "one below the other on a phone, else side by side"
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", charts[0])
    page.painted(f"11 {width} {scheme}")
    brightness = float(np.median(page.shot(f"11 {width} {scheme}")))
    assert brightness > 0.95 if scheme == "light" else brightness < 0.12, "the charts, too"


def test_the_table_is_sorted_and_copied_as_latex(page, tracked):
    driver = page.driver
    driver.get((tracked.out / "report.html").as_uri())

    def column(index):
        return [row.text for row in driver.find_elements(By.CSS_SELECTOR, f"#configurations td:nth-child({index})")]

    assert (
        page.find("#result").text.startswith("foml K=")
        and " leads: its cumulative error of 0." in page.find("#result").text
    )
    head = driver.find_elements(By.CSS_SELECTOR, "#configurations th")
    assert [each.text for each in head][:5] == [
        "learner", "hyper-parameters", "cumulative error", "difference to best", "p",
    ]  # fmt: skip
    by_error = column(3)
    means = [each[:5] for each in by_error]
    assert means == sorted(means) and all(re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", each) for each in by_error)
    head[2].click()
    assert column(3) == by_error and head[2].get_attribute("aria-sort") == "ascending"
    head[2].click()
    assert column(3) == by_error[::-1] and head[2].get_attribute("aria-sort") == "descending"
    differences = [each[:6] for each in column(4)]
    assert differences[-1] == "–"
    head[3].click()
    assert [each[:6] for each in column(4)] == [*sorted(differences[:2]), "–"], "an empty cell is last in either order"
    head[3].click()
    assert [each[:6] for each in column(4)] == [*sorted(differences[:2])[::-1], "–"]
    head[1].click()
    assert column(2) == ["–", "K=1", "K=5"] and head[3].get_attribute("aria-sort") == "none"

    page.click("Copy as LaTeX", "button")
    page.click("Copied", "button")
    copy = page.find("#latex")
    driver.execute_script("arguments[0].value = ''; arguments[0].readOnly = false; arguments[0].focus()", copy)
    ActionChains(driver).key_down(Keys.CONTROL).send_keys("v").key_up(Keys.CONTROL).perform()
    assert copy.get_property("value") == (tracked.out / "summary.tex").read_text(encoding="utf-8")
    assert "\\textbf{0." in copy.get_property("value")


def of_many(count):
    """The page of `count` configurations: one in colour, the others as grey lines and points, each at its own height."""
    rows = [
        ComparisonRow(
            ConfigurationRuns("x", str(number), f"foml {number}", "foml", False, True, (0,), {}, {}, ()),
            Interval(0.5, 0.4, 0.6, 3),
            Interval(0.5, 0.4, 0.6, 3),
        )
        for number in range(count)
    ]

    def series(number, kind):
        x = np.arange(1.0, 21.0) if kind == "line" else np.array([1.0 + number])
        y = np.full(len(x), (1 + number) / (2 + count))
        nan = np.full(len(x), np.nan)
        style = None if number else 0
        return Series(f"foml {number}", x, y, nan, nan, style, number, kind)

    panels = tuple(
        Panel(kind, "tasks seen", "error", tuple(series(number, kind) for number in range(count)))
        for kind in ("line", "points")
    )
    return report_page(
        SweepRuns(None, "x", "many", "cumulative_error", "min", ()), rows, [Chart("many", "many", panels)]
    )


def unlike(one, other):
    """The share of pixels that differ."""
    return float((one != other).any(axis=-1).mean())


def test_series_in_grey_are_few_models_and_are_hidden_one_by_one(page, tmp_path):
    driver = page.driver
    (tmp_path / "report.html").write_text(of_many(20), encoding="utf-8")
    driver.get_log("browser")
    driver.get((tmp_path / "report.html").as_uri())
    page.until(lambda driver: driver.execute_script("return Bokeh.documents[0]?.is_idle"), "Bokeh's charts")
    models = "return Bokeh.documents.flatMap(each => [...each._all_models.values()].map(each => each.type))"
    renderers = driver.execute_script(models).count("GlyphRenderer")
    assert renderers == 1 + 1 + 2 + 2, "of lines: the one in colour and all in grey; of points: each with its bars"
    chart = page.find("#many")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    boxes = driver.find_elements(By.CSS_SELECTOR, "#series input")

    def seen(before):
        """The chart when it is still and has changed."""

        def settled(driver):
            first = matplotlib.image.imread(BytesIO(chart.screenshot_as_png))
            time.sleep(0.5)  # one panel is drawn after the other
            second = matplotlib.image.imread(BytesIO(chart.screenshot_as_png))
            return None if unlike(first, second) or not unlike(first, before) else [first]

        return page.until(settled, "another picture")[0]

    everything = seen(0.0)
    driver.execute_script("arguments[0].click()", boxes[7])
    fewer = seen(everything)
    driver.execute_script("showAll(false)")
    nothing = seen(fewer)
    assert unlike(everything, fewer) == pytest.approx(unlike(everything, nothing) / 20, rel=0.5), "one of twenty"
    driver.execute_script("arguments[0].click()", boxes[7])
    alone = seen(nothing)
    assert unlike(alone, nothing) == pytest.approx(unlike(everything, fewer), rel=0.2), "the same one"
    driver.execute_script("showAll(true)")
    assert unlike(seen(alone), everything) == 0.0, "all of them again"
    assert [line for line in driver.get_log("browser") if line["level"] == "SEVERE"] == []
