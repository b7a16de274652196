import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from guided_collapse.report.figures.drawing import (
    as_files,
    draw_curve,
    draw_legend,
    draw_references,
    logarithmic,
    plain,
    print_style,
)
from guided_collapse.report.looks import looks_of
from guided_collapse.report.summaries import Curve


def curve(values):
    values = np.asarray(values, dtype=np.float64)
    return Curve(np.arange(1.0, len(values) + 1), values, values / 2, values * 2, np.ones(len(values), dtype=np.int64))


@pytest.fixture
def axes():
    return Figure().add_subplot()


def test_a_curve_is_its_median_and_its_range(axes):
    draw_curve(axes, curve([4.0, 2.0, 1.0]), looks_of(["fixed"])["fixed"])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [4.0, 2.0, 1.0])
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert {8.0, 4.0, 2.0, 1.0, 0.5} <= set(edges)


def test_a_logarithmic_axis_only_where_it_can_show_something(axes):
    draw_curve(axes, curve([0.0, 0.0]), looks_of(["fixed"])["fixed"])
    logarithmic(axes, [curve([0.0, 0.0])])
    assert axes.get_yscale() == "linear"
    logarithmic(axes, [])
    draw_curve(axes, curve([1.0, 0.0, 0.5]), looks_of(["fixed"])["fixed"])
    draw_references(axes, [0.1])
    logarithmic(axes, [curve([0.0, 0.0]), curve([1.0, 0.0, 0.5])])
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 0.1


@pytest.mark.parametrize(("highest", "ticks"), [(0.6, ["0.3", "0.6", "0.9"]), (40.0, ["10^{-1}", "10^{0}", "10^{1}"])])
def test_ticks_of_a_narrow_axis_are_plain_numbers(highest, ticks, axes):
    shown = curve([0.4, highest])
    draw_curve(axes, shown, looks_of(["fixed"])["fixed"])
    logarithmic(axes, [shown])
    axes.figure.draw_without_rendering()
    texts = [label.get_text() for label in axes.get_yticklabels()]
    assert all(any(tick in text for text in texts) for tick in ticks)


def test_names_are_set_as_they_are_and_files_are_whole():
    assert plain("a\n$b$") == r"a \$b\$"
    before = matplotlib.rcParams["font.size"]
    with print_style():
        figure = Figure(figsize=(2, 1), layout="constrained")
        figure.add_subplot().set_title(plain(r"$\frac{ 漢字 \alpha$ <b>"))
        draw_legend(figure, looks_of(["$x$", "fixed"]), reference=True)
        files = as_files(figure, "name")
    assert matplotlib.rcParams["font.size"] == before
    assert set(files) == {"name.pdf", "name.png"}
    assert files["name.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in files["name.pdf"]
    assert files["name.png"].startswith(b"\x89PNG")


def test_files_are_those_that_matplotlib_saves_itself():
    def drawn():
        found = Figure(figsize=(3, 2), layout="constrained")
        axes = found.add_subplot()
        draw_curve(axes, curve([1.0, 10.0, 0.1]), looks_of(["fixed"])["fixed"])
        logarithmic(axes, [curve([1.0, 10.0, 0.1])])
        draw_legend(found, looks_of(["fixed"]))
        return found

    expected = io.BytesIO()
    with print_style():
        figure = drawn()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        figure.savefig(expected, dpi=200)
        files = as_files(drawn(), "name")
    mine, theirs = (np.asarray(Image.open(io.BytesIO(file))) for file in (files["name.png"], expected.getvalue()))
    np.testing.assert_array_equal(mine, theirs)
