"""The page of ``report``, opened in a headless Chromium: what a person sees and does there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.cli.main import main
from tests.made_records import make_run, make_scaling, make_sweep

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
HOSTILE = """</script><script>hacked=1</script><img src="http://localhost/x" onerror="hacked=1">"""
PHONE, DESKTOP = {"width": 390, "height": 800}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        pytest.skip("needs Chromium: sudo python -m tests.sandbox install")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()


Open = Callable[..., "Page"]


@pytest.fixture
def show(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Open]:
    """Report a run or sweep of ``runs/`` and open the page; at the end nothing was said in the console, and nothing
    was asked of any server."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    asked: list[str] = []

    def report(name: str, scheme: str = "light", viewport: dict[str, int] = DESKTOP) -> Page:
        assert main(["report", name, "-o", "page.html"]) == 0
        page = browser.new_page(color_scheme=scheme, viewport=viewport)  # pyright: ignore[reportArgumentType]
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        return page

    yield report
    assert said == []
    assert [url for url in asked if not url.startswith(("file://", "data:"))] == []


def draw_all(page: Page) -> int:
    """Scroll to each chart; returns how many were drawn."""
    figures = page.locator("[data-chart]")
    for index in range(figures.count()):
        figures.nth(index).scroll_into_view_if_needed()
        figures.nth(index).locator("canvas").wait_for()
    return figures.count()


def cells(page: Page, table: str, column: int) -> list[str]:
    return page.locator(f"#{table} tbody tr:not([hidden]) td:nth-child({column})").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_of_a_run_opens_draws_all_and_is_as_wide_as_the_screen(
    show: Open, tmp_path: Path, scheme: str, viewport: dict[str, int]
) -> None:
    make_run(tmp_path / "runs" / "a-run")
    page = show("a-run", scheme, viewport)
    assert draw_all(page) > 8
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    assert page.locator(".tiles div", has_text="return").locator("dd").first.inner_text() == "400"
    assert page.locator("h1 .badge").inner_text() == "completed"
    assert cells(page, "attempts", 8) == ["node lost", "max iterations"]


def test_curves_are_drawn_over_iterations_or_time(show: Open, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a-run")
    page = show("a-run")
    draw_all(page)
    drawn = "echarts.getInstanceByDom(document.querySelector('[data-chart]')).getOption()"
    assert page.evaluate(f"{drawn}.xAxis[0].name") == "iteration"
    assert page.evaluate(f"{drawn}.series[0].data[39]") == [40, 400]
    assert page.evaluate(f"{drawn}.series[0].markLine.data[0].label.formatter") == "node lost"
    page.get_by_role("button", name="Time").click()
    assert page.evaluate(f"{drawn}.xAxis[0].name") == "time, s"
    assert page.evaluate(f"{drawn}.series[0].data[20]")[1] is None  # the wait between the attempts
    assert page.evaluate(f"{drawn}.series[0].data[40]") == [140, 400]


def test_a_sweeps_table_is_sorted_and_filtered(show: Open, tmp_path: Path) -> None:
    make_sweep(tmp_path / "runs" / "a-sweep", 14)
    page = show("a-sweep", "dark")
    draw_all(page)
    returns = page.locator("#runs th button", has_text="return")
    column = page.locator("#runs th").all_inner_texts().index(returns.inner_text()) + 1
    returns.click()
    assert cells(page, "runs", column) == [f"{100 * number:,}" for number in range(1, 15)]
    returns.click()
    assert cells(page, "runs", column) == [f"{100 * number:,}" for number in range(14, 0, -1)]
    assert page.locator("#runs th[aria-sort=descending]").count() == 1
    page.get_by_role("searchbox").fill("0013")
    assert cells(page, "runs", 1) == ["0013"]
    assert (
        page.evaluate(
            "echarts.getInstanceByDom(document.querySelector('[data-chart]')).getOption().series[0].data.length"
        )
        == 14
    )


@pytest.mark.parametrize(("scheme", "viewport"), [("dark", PHONE), ("light", DESKTOP)], ids=["phone", "desktop"])
def test_the_page_of_a_scaling_benchmark_tells_the_numbers_of_a_point(
    show: Open, tmp_path: Path, scheme: str, viewport: dict[str, int]
) -> None:
    make_scaling(tmp_path / "runs" / "how-it-scales")
    page = show("how-it-scales", scheme, viewport)
    assert draw_all(page) == 6
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    for title, said in {
        "Throughput": ("2 ranks", "1,500 frames/s", "1,425 to 1,575 in 2 repetitions", "N × one rank: 2,000"),
        "An iteration": ("ranks 2: 1.2 s", "synchronising 0.5 s, 42%", "stepping 0.4 s, 33%"),
    }.items():
        chart = page.locator("figure", has_text=title).first.locator("[data-chart]")
        chart.scroll_into_view_if_needed()
        chart.evaluate(
            "one => echarts.getInstanceByDom(one).dispatchAction({type: 'showTip', seriesIndex: 1, dataIndex: 1})"
        )
        assert [words for words in said if words not in chart.inner_text()] == []


def test_names_of_many_gpus_stand_above_their_chart_whole(show: Open, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a-run", hosts=["a-host-with-a-long-name", "gpu02"])
    page = show("a-run", "dark", PHONE)
    draw_all(page)
    chart = page.locator("figure", has_text="GPU use").locator("[data-chart]")
    top = chart.evaluate("one => echarts.getInstanceByDom(one).getOption().grid[0].top")
    assert top > 60  # three lines of names
    option = chart.evaluate("one => echarts.getInstanceByDom(one).getOption().legend[0]")
    assert len(option["data"]) == 4 and option.get("type", "plain") == "plain"


def test_names_that_are_scripts_do_nothing(show: Open, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a-run", hosts=[HOSTILE, "gpu02"], name=HOSTILE, config=HOSTILE)
    page = show("a-run")
    draw_all(page)
    chart = page.locator("figure", has_text="CPU use").locator("[data-chart]")
    chart.hover()  # its tooltip names the host
    assert "<img" in chart.inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("body img").count() == 0
    assert HOSTILE in page.locator("header p").inner_text()
