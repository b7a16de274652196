import math

import pytest

from guided_collapse.experiments.records.text import one_line
from guided_collapse.experiments.report.summaries import AtEpoch, Spread
from guided_collapse.experiments.report.tables.table import (
    at_epoch_cell,
    epochs_text,
    escape_latex,
    number_text,
    spread_cell,
    spread_text,
    words,
)


def test_latex_sets_any_text_as_it_is():
    assert escape_latex("a_b & 5% of $x$ #1 {y} ~^\\") == (
        r"a\_b \& 5\% of \$x\$ \#1 \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escape_latex("<script>|") == r"\textless{}script\textgreater{}\textbar{}"


def test_text_stays_on_one_line():
    assert one_line(" a\n\tb\x00c\r\nd ") == "a b c d"
    assert words("a\nb_c").text == "a b_c"
    assert words("a\nb_c").latex == r"a b\_c"


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [
        (12.3456, True, "12.35"),
        (100.0, True, "100.00"),
        (0.00012346, False, "0.0001235"),
        (1e-9, False, "1e-09"),
        (math.inf, False, "never"),
    ],
)
def test_numbers_as_text(value, percent, text):
    assert number_text(value, percent=percent) == text


def test_a_spread_has_its_range_unless_there_is_one_seed():
    assert spread_text(Spread(2.0, 1.0, 4.0, 2)) == "2 (1 to 4)"
    assert spread_text(Spread(2.0, 2.0, 2.0, 1)) == "2"
    assert spread_text(Spread(5.0, 3.0, math.inf, 3)) == "5 (3 to never)"
    assert spread_text(Spread(88.714, 88.5, 89.6, 5), percent=True) == "88.71 (88.50 to 89.60)"


def test_latex_is_as_in_the_paper():
    assert spread_cell(Spread(88.714, 88.5, 89.6, 5), percent=True).latex == r"$88.71\,^{89.60}_{88.50}$"
    assert spread_cell(Spread(1e-9, 1e-9, 1e-9, 1)).latex == r"$1{\cdot}10^{-9}$"
    assert spread_cell(Spread(2.0, 1.0, math.inf, 2)).latex == r"$2\,^{\text{never}}_{1}$"
    assert spread_cell(None).text == "-"


def test_another_epoch_than_asked_for_is_said():
    value = Spread(50.0, 40.0, 60.0, 2)
    assert at_epoch_cell(AtEpoch(value, (50, 50)), 50).text == "50 (40 to 60)"
    assert at_epoch_cell(AtEpoch(value, (30, 50)), 50).text == "50 (40 to 60) [epoch 30 to 50]"
    assert at_epoch_cell(AtEpoch(value, (30, 30)), 50).latex.endswith("$ [epoch 30]")
    assert at_epoch_cell(AtEpoch(value, (30, 50)), None).text == "50 (40 to 60)"
    assert at_epoch_cell(None, 50).text == "-"
    assert epochs_text((7, 7)) == "7"
