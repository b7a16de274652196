"""Everything that is shown or recorded of a metric follows from its declaration."""

import subprocess
import sys
from dataclasses import fields

import pytest

from guided_collapse import CollapseResult
from guided_collapse.metrics.declared import METRICS, SPLITS, best_margin, entries, recorded


def test_results_have_the_declared_numbers_and_no_others():
    numbers = {field.name for field in fields(CollapseResult) if field.type in (float, float | None)}
    assert {entry.key for entry in entries()} == numbers


def test_what_is_charted_is_recorded():
    told_by_runs = {name for name, metric in METRICS.items() if metric.section is None}
    for name, metric in METRICS.items():
        for split in metric.charts:
            assert split in metric.splits
            assert name in told_by_runs | set(recorded(split))
    assert recorded("test")["nc4"] == "test_nc4"
    assert "accuracy" not in recorded("train")
    assert set(recorded("test")) < set(recorded("train"))
    assert {entry.split for entry in entries()} == set(SPLITS)


@pytest.mark.parametrize(
    ("feature_dim", "num_classes", "margin"),
    [(8, 5, 5 / 4), (2, 3, 3 / 2), (2, 8, 1 - 0.5**0.5), (6, 9, 1), (1, 5, 0), (6, 13, None)],
)
def test_best_margins_that_are_known(feature_dim, num_classes, margin):
    assert best_margin(feature_dim, num_classes) == (None if margin is None else pytest.approx(margin))


def test_declarations_do_not_wait_for_torch():
    program = "import sys; import guided_collapse.metrics.declared; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
