import pytest

from tests.metrics.cases import case
from tests.metrics.test_streaming import feed, filled


def test_other_samples_than_before_are_refused():
    data = case("balanced")
    second = filled(data, [9]).second_pass(data.weight)
    second.update(data.features[:40], data.labels[:40])
    with pytest.raises(ValueError, match=r"the same samples as the first, 72 of them; got 40"):
        second.compute()
    with pytest.raises(ValueError, match=r"test_labels must be in"):
        second.update(data.features, data.labels + 1, test=True)


def test_it_can_be_reset_and_called():
    data = case("balanced")
    second = filled(data, [9]).second_pass(data.weight)
    feed(second, data, [30])
    once = second.compute().to_dict()
    second.reset()
    assert second(data.features, data.labels) is None
    assert second.compute().to_dict() == once
