"""The page in a headless Chromium: no errors, no requests, everything is drawn, and every control works."""

import json
import time

import numpy as np
import pytest

from tests.experiments.report.browser import Browser
from tests.experiments.report.made_up import lines, page_of, trace, write_run

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

EVIL = "<script>alert(1)</script>"
# plotly itself takes <b> and <a> for markup.
EVIL_HEAD = f"<b>bold</b><a href='x'>link</a><img src=x onerror=alert(2)>{EVIL}"
HEADS = ["cosine", "fixed-etf", "nearest-etf"]
RIGHT, TAB, END = "\ue014", "\ue004", "\ue010"
DRAWN = "document.body.dataset.drawn === 'all'"


def written_page(folder):
    """The page of the runs in a folder, as a file."""
    path = folder / "report.html"
    path.write_text(page_of(folder / "runs"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def _one_browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    for head in HEADS:
        for seed in range(2):
            write_run(folder / "runs", "toy", head, seed, trace=trace(seed=len(head)) if seed == 0 else None)
    write_run(folder / "runs", EVIL, EVIL_HEAD, 0, folder="evil", trace=True)
    path = written_page(folder)
    with Browser(folder / "profile") as found:
        found.requests()  # forgets those of the empty first tab
        found.path = path
        yield found


@pytest.fixture
def browser(_one_browser):
    """The page after opening; asserts that no test causes an error in it."""
    _one_browser.open(_one_browser.path)
    _one_browser.wait(DRAWN)
    yield _one_browser
    assert _one_browser.log_of("browser") == []


def panel(browser, title, code):
    """Runs code with `plot`, the chart of that title in the experiment toy, and `figure` around it, once it is drawn."""
    found = """
    const found = panels.find((each) => each.title === arguments[0] && each.figure.closest("#experiment-1"));
    const figure = found.figure, plot = figure.querySelector(".plot");
    """
    browser.run(found + 'figure.closest("details")?.setAttribute("open", ""); figure.scrollIntoView({ block: "center" })', title)
    drawn = "panels.some((each) => each.title === %s && each.figure.closest('#experiment-1') && each.drawn)"
    browser.wait(drawn % json.dumps(title))
    return browser.run(found + code, title)


def open_everything(browser):
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def medians(browser, title):
    return panel(browser, title, "return plot.data.filter((t) => t.meta.role === 'median').map((t) => [t.meta.head, t.name, t.y])")


def test_no_request_leaves_the_page(browser):
    inside = ("data:", "blob:", "chrome:", "chrome-untrusted:", browser.path.resolve().as_uri())
    assert [address for address in browser.requests() if not address.startswith(inside)] == []
    assert browser.run("return document.title") == "guided-collapse report"


def test_every_figure_is_drawn(browser):
    open_everything(browser)
    assert browser.run("return panels.length") == 30
    for place in range(30):
        browser.run("panels[arguments[0]].figure.scrollIntoView({ block: 'center' })", place)
        browser.wait(f"panels[{place}].drawn")
    count = "plot.querySelectorAll('.scatterlayer .js-line').length"
    shown = browser.run(f"return [...document.querySelectorAll('.plot')].map((plot) => [{count}, plot.clientHeight])")
    assert all(drawn > 0 and height > 100 for drawn, height in shown)
    pixels = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    painted = browser.run(f"return [...document.querySelectorAll('canvas')].map((c) => {pixels}.some((value) => value))")
    assert painted == [True] * 4


def test_a_frame_of_more_classes_than_a_simplex_has_is_drawn_and_turns(browser, tmp_path):
    corners = np.concatenate([np.eye(3), -np.eye(3)])
    still = np.tile(corners, (2, 1, 1)).astype(np.float32)
    made_up = trace(epochs=(1, 2)) | {"classes": np.arange(6), "weights": still, "means": still, "samples": still}
    write_run(tmp_path / "runs", "narrow", num_classes=6, feature_dim=3, trace=made_up | {"sample_labels": np.arange(6)})
    browser.open(written_page(tmp_path))
    browser.wait(DRAWN)
    # The octahedron has 12 edges and 3 diagonals, which are no neighbors.
    assert browser.run("return edgesOf(DATA.experiments[0].animations[0], 1).length") == 12
    assert browser.run("return [0, 1, 2, 3, 4, 5].map(shapeOf)") == [0, 1, 2, 3, 1, 2]
    pixels = "return document.querySelector('canvas').toDataURL()"
    first = browser.run(pixels)
    browser.run("document.querySelector('.play').click()")
    browser.wait("document.querySelector('output').textContent === 'epoch 2'")
    # The points stand still, and the view has turned.
    assert browser.run(pixels) != first


def test_of_many_figures_those_are_drawn_that_come_into_view(browser, tmp_path):
    for number in range(6):
        write_run(tmp_path / "runs", f"toy-{number}", epochs=3)
    browser.open(written_page(tmp_path))
    browser.wait(f"panels.some((panel) => panel.drawn) && {DRAWN}")
    assert browser.run("return panels.filter((panel) => panel.drawn).length") < 6
    browser.run("const last = panels.at(-1).figure; last.closest('details').open = true; last.scrollIntoView()")
    browser.wait(f"panels.at(-1).drawn && {DRAWN}")
    assert browser.run("return panels.filter((panel) => panel.drawn).length") < 40


def test_a_head_that_is_switched_off_disappears(browser):
    box = "document.querySelectorAll('.head')[1]"
    assert browser.run(f"return {box}.parentElement.textContent") == "Fixed ETF"
    browser.run(f"{box}.focus()")
    browser.press(" ")
    browser.wait(DRAWN)
    assert [name for _, name, _ in medians(browser, "Top-1 accuracy, test (%)")] == ["Cosine", "Nearest ETF"]
    assert browser.run("return [...document.querySelectorAll('#experiment-1 .stage')].map((s) => s.hidden)") == [False, True, False]


def test_the_log_switches_change_the_axis(browser):
    def kinds():
        titles = ("Loss, test", "NC1, within-class variability", "Cosine margins at the end, train")
        return [panel(browser, title, "return plot._fullLayout.yaxis.type") for title in titles]

    assert kinds() == ["linear", "log", "linear"]
    panel(browser, "Loss, test", "figure.querySelector('.axis').click()")
    assert kinds() == ["log", "log", "linear"]
    assert panel(browser, "Loss, test", "return figure.querySelector('.axis').getAttribute('aria-pressed')") == "true"
    browser.run("document.getElementById('log-epochs').click()")
    assert panel(browser, "Loss, test", "return plot._fullLayout.xaxis.type") == "log"


def test_the_axis_of_accuracies_starts_where_the_second_half_does_and_says_so(browser):
    low, high = panel(browser, "Top-1 accuracy, test (%)", "return plot._fullLayout.yaxis.range")
    ends = [100 * line["test"]["top1"] for head in HEADS for seed in range(2) for line in lines(head, seed)[9:]]
    assert min(ends) - 5 < low < min(ends)
    assert max(ends) < high < max(ends) + 5
    assert "starts at" in panel(browser, "Top-1 accuracy, test (%)", "return figure.querySelector('.axis-note').textContent")


def test_zero_on_a_logarithmic_axis_is_said(browser):
    said = panel(browser, "NC2, weights to nearest frame", "return figure.querySelector('.axis-note').textContent")
    assert said == "0 throughout, so not on this axis: Fixed ETF"
    fixed = next(shown for head, _, shown in medians(browser, "NC2, weights to nearest frame") if head == 1)
    assert set(fixed) == {None}


def test_a_chart_is_read_with_the_keyboard(browser):
    panel(browser, "Loss, test", "plot.focus()")
    browser.press(RIGHT, RIGHT)
    said = panel(browser, "Loss, test", "return figure.querySelector('.readout').textContent")
    losses = sorted(lines("cosine", seed, 20)[1]["test"]["loss"] for seed in range(2))
    assert said.startswith(f"epoch 2: Cosine {sum(losses) / 2:.4g} ({losses[0]:.4g} to {losses[1]:.4g}); Fixed ETF ")
    browser.press(END)
    assert panel(browser, "Loss, test", "return figure.querySelector('.readout').textContent").startswith("epoch 20:")


def test_every_control_is_reached_by_tab(browser):
    browser.run("document.querySelector('.skip').focus()")
    reached = {"skip"}
    for _ in range(20):
        browser.press(TAB)
        reached |= set(browser.run("return [document.activeElement.id, ...document.activeElement.classList]"))
    assert {"skip", "head", "log-epochs", "axis", "plot"} <= reached


def test_the_animation_moves(browser):
    part = "document.querySelector('#experiment-1 .animation')"
    pixels = f"return [...{part}.querySelectorAll('canvas')].map((c) => c.toDataURL())"
    first = browser.run(pixels)
    assert browser.run(f"return {part}.querySelector('output').textContent") == "epoch 1"
    browser.run(f"{part}.querySelector('.play').click()")
    browser.wait(f"{part}.querySelector('output').textContent === 'epoch 20'")
    last = browser.run(pixels)
    assert len(first) == 3
    assert all(one != other for one, other in zip(first, last, strict=True))
    browser.wait(f"{part}.querySelector('.play').textContent === 'Play'")
    browser.run(f"{part}.querySelector('.epoch').focus()")
    browser.press("\ue011")
    assert browser.run(f"return {part}.querySelector('output').textContent") == "epoch 1"
    assert browser.run(pixels) == first
    browser.run(f"{part}.querySelector('canvas').focus()")
    browser.press(RIGHT)
    assert browser.run(pixels) != first
    assert "epoch 1: samples" in browser.run(f"return {part}.querySelector('canvas').getAttribute('aria-label')")


def test_names_are_shown_as_text(browser):
    assert browser.run("return document.querySelector('#experiment-0 h2').textContent") == EVIL
    assert browser.run("return document.querySelectorAll('img, #experiment-0 script').length") == 0
    # Hovering shows plotly's own rendering of the name.
    browser.run("Plotly.Fx.hover(document.querySelector('#experiment-0 .plot'), [{curveNumber: 0, pointNumber: 3}])")
    time.sleep(0.3)
    hover = browser.run("return document.querySelector('#experiment-0 .plot .hoverlayer').textContent")
    assert EVIL_HEAD in hover


def test_dark_and_light_follow_the_system(browser):
    def colors():
        line = "plot.data.find((trace) => trace.meta.role === 'median').line.color"
        ground = "getComputedStyle(document.body).backgroundColor"
        return panel(browser, "Top-1 accuracy, test (%)", f"return [{ground}, {line}]")

    light = colors()
    try:
        browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        end = time.monotonic() + 30
        while (dark := colors())[1] == light[1]:
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        browser.command("Emulation.setEmulatedMedia", features=[])
    assert (light[0], dark[0]) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")


def bottoms(browser, selector):
    """Where elements end, in pixels from the top of the window."""
    return browser.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().bottom)", selector)


def write_experiments(folder, experiments):
    for experiment in experiments:
        for head in ("linear", "cosine", "fixed-etf", "nearest-etf"):
            for seed in range(3):
                known = {"trace": True} if experiment == "toy" and seed == 0 else {"num_test": 100 * (experiment == "toy")}
                write_run(folder / "runs", experiment, head, seed, epochs=5, **known)
    return written_page(folder)


@pytest.mark.parametrize("experiments", [["toy"], ["toy", "ufm-10", "ufm-100"]], ids=["one", "three"])
def test_the_first_screen_holds_the_answer(browser, tmp_path, experiments):
    browser.command("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    try:
        browser.open(write_experiments(tmp_path, experiments))
        browser.wait(DRAWN)
        assert max(bottoms(browser, "#results .verdict")) < 300
        assert browser.run("return document.querySelector('main').textContent.trim()").startswith(
            "Draw" if len(experiments) == 1 else "3 experiments."
        )
        assert len(bottoms(browser, "[data-table=verdicts] tbody tr")) == (0 if len(experiments) == 1 else 3)
        assert max(bottoms(browser, "#results table"), default=0) < 500
        if len(experiments) == 1:
            for selector in ("[data-table=outcome] table", ".answer .plot .main-svg", ".play", "canvas"):
                found = bottoms(browser, f"#experiment-0 {selector}")
                assert found, selector
                assert max(found) <= 820, selector
        hidden = "[...document.querySelectorAll('.answer .scroll')].filter((part) => part.scrollWidth > part.clientWidth)"
        assert browser.run(f"return {hidden}.length") == 0
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("experiments", [["toy"], ["toy", "ufm-10"]], ids=["one", "two"])
def test_a_phone_needs_no_sideways_scrolling_and_cuts_no_table(browser, tmp_path, experiments):
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    try:
        browser.open(write_experiments(tmp_path, experiments))
        browser.wait(DRAWN)
        open_everything(browser)
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        for kind in (".plot .main-svg", "table", "td", "math", "pre", "canvas"):
            widest = f"Math.max(0, ...[...document.querySelectorAll('{kind}')].map((part) => part.getBoundingClientRect().right))"
            assert browser.run(f"return {widest}") <= 390, kind
        layouts = (
            "[...new Set([...document.querySelectorAll('#results td, .more td')].map((cell) => getComputedStyle(cell).display))]"
        )
        assert browser.run(f"return {layouts}") == ["flex"]
        cut = "[...document.querySelectorAll('.scroll, pre')].filter((part) => part.scrollWidth > part.clientWidth)"
        assert browser.run(f"return {cut}.map((part) => part.textContent)") == []
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
