import pytest

from guided_collapse.metrics.collapse import measure_collapse
from tests.metrics.cases import case
from tests.metrics.machinery.test_streaming import RANKS, agree, feed, filled


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


def test_training_that_goes_on_does_not_change_the_classifier_that_is_measured():
    data = case("balanced")
    weight, bias = data.weight.clone(), data.bias.clone()
    second = filled(data, [9]).second_pass(weight, bias)
    weight.neg_()
    bias.zero_()
    feed(second, data, [30])
    agree(second.compute(), measure_collapse(*data), left_out=RANKS)
