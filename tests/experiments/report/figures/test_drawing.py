import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from guided_collapse.experiments.report.figures import drawing
from guided_collapse.experiments.report.styles import styles_of
from guided_collapse.experiments.report.summaries import Curve


def curve(values):
    values = np.asarray(values, dtype=np.float64)
    return Curve(np.arange(1.0, len(values) + 1), values, values / 2, values * 2, np.ones(len(values), dtype=np.int64))


@pytest.fixture
def axes():
    return Figure().add_subplot()


def test_a_curve_is_its_median_and_its_range(axes):
    drawing.draw_curve(axes, curve([4.0, 2.0, 1.0]), styles_of(["fixed-etf"])["fixed-etf"])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [4.0, 2.0, 1.0])
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert {8.0, 4.0, 2.0, 1.0, 0.5} <= set(edges)


def test_a_logarithmic_axis_only_where_it_can_show_something(axes):
    drawing.draw_curve(axes, curve([0.0, 0.0]), styles_of(["fixed-etf"])["fixed-etf"])
    drawing.logarithmic(axes, [curve([0.0, 0.0])])
    assert axes.get_yscale() == "linear"
    drawing.logarithmic(axes, [])
    drawing.draw_curve(axes, curve([1.0, 0.0, 0.5]), styles_of(["fixed-etf"])["fixed-etf"])
    drawing.draw_references(axes, [0.1])
    drawing.logarithmic(axes, [curve([0.0, 0.0]), curve([1.0, 0.0, 0.5])])
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 0.1


@pytest.mark.parametrize(("highest", "ticks"), [(0.6, ["0.3", "0.6", "0.9"]), (40.0, ["10^{-1}", "10^{0}", "10^{1}"])])
def test_ticks_of_a_narrow_axis_are_plain_numbers(highest, ticks, axes):
    shown = curve([0.4, highest])
    drawing.draw_curve(axes, shown, styles_of(["fixed-etf"])["fixed-etf"])
    drawing.logarithmic(axes, [shown])
    axes.figure.draw_without_rendering()
    texts = [label.get_text() for label in axes.get_yticklabels()]
    assert all(any(tick in text for text in texts) for tick in ticks)


def test_names_are_set_as_they_are_and_files_are_whole():
    assert drawing.plain("a\n$b$") == r"a \$b\$"
    before = matplotlib.rcParams["font.size"]
    with drawing.print_style():
        figure = Figure(figsize=(2, 1), layout="constrained")
        figure.add_subplot().set_title(drawing.plain(r"$\frac{ 漢字 \alpha$ <b>"))
        drawing.draw_legend(figure, styles_of(["$x$", "fixed-etf"]), reference=True)
        files = drawing.as_files(figure, "name")
    assert matplotlib.rcParams["font.size"] == before
    assert set(files) == {"name.pdf", "name.png"}
    assert files["name.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in files["name.pdf"]
    assert files["name.png"].startswith(b"\x89PNG")


def test_files_are_those_that_matplotlib_saves_itself():
    def drawn():
        found = Figure(figsize=(3, 2), layout="constrained")
        axes = found.add_subplot()
        drawing.draw_curve(axes, curve([1.0, 10.0, 0.1]), styles_of(["fixed-etf"])["fixed-etf"])
        drawing.logarithmic(axes, [curve([1.0, 10.0, 0.1])])
        drawing.draw_legend(found, styles_of(["fixed-etf"]))
        return found

    expected = io.BytesIO()
    with drawing.print_style():
        figure = drawn()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        figure.savefig(expected, dpi=200)
        files = drawing.as_files(drawn(), "name")
    mine, theirs = (np.asarray(Image.open(io.BytesIO(file))) for file in (files["name.png"], expected.getvalue()))
    np.testing.assert_array_equal(mine, theirs)
