import math

import pytest

from guided_collapse.experiments.records.declared.references import best_margin


def test_margins():
    assert best_margin(5, 8) == pytest.approx(5 / 4)
    assert best_margin(3, 2) == pytest.approx(3 / 2)
    assert best_margin(8, 2) == pytest.approx(1 - math.cos(math.pi / 4))
    assert best_margin(9, 6) == 1
    assert best_margin(5, 1) == 0
    assert best_margin(13, 6) is None
