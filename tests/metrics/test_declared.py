"""Declarations of metrics determine what is shown and recorded."""

import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest

from guided_collapse import CollapseResult
from guided_collapse.metrics.declared import METRICS, SPLITS, Need, Reference, best_margin, metrics_of_results, recorded


def test_results_have_exactly_the_declared_metrics():
    numbers = {field.name for field in fields(CollapseResult) if field.type in (float, float | None)}
    assert {metric.name for metric in metrics_of_results()} == numbers


def test_declarations_are_valid_and_charted_metrics_are_recorded():
    for name, metric in METRICS.items():
        assert set(metric.needs) <= set(get_args(Need))
        assert metric.reference in (None, *get_args(Reference))
        assert set(metric.charts) <= set(metric.splits) <= set(SPLITS)
        assert metric.section is None or all(name in recorded(split) for split in metric.charts)
    assert recorded("test")["nc4"] == "test_nc4"
    assert "accuracy" not in recorded("train")
    assert set(recorded("test")) < set(recorded("train"))


@pytest.mark.parametrize(
    ("feature_dim", "num_classes", "margin"),
    [(8, 5, 5 / 4), (2, 3, 3 / 2), (2, 8, 1 - 0.5**0.5), (6, 9, 1), (1, 5, 0), (6, 13, None)],
)
def test_known_best_margins(feature_dim, num_classes, margin):
    assert best_margin(feature_dim, num_classes) == (None if margin is None else pytest.approx(margin))


def test_declarations_do_not_import_torch():
    program = "import sys; import guided_collapse.metrics.declared; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
