"""Streaming agrees with `measure_collapse` for any batches and order, inside and outside of torchmetrics' containers."""

import copy
import math
import pickle
import re

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection

from guided_collapse import CollapseMetrics, measure_collapse
from tests.metrics.cases import RANKS, SECOND_PASS, SIZES, agree, case, feed, filled


@pytest.mark.parametrize("noise", [0.7, 1e-6])
@pytest.mark.parametrize("sizes", [[1], [7], [1, 50, 3], [10_000]], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_two_passes_equal_the_pure_function(name, sizes, noise):
    data = case(name, noise=noise)
    metrics = filled(data, sizes)
    pure = measure_collapse(*data)
    agree(metrics.measure(data.weight, data.bias), pure, left_out=(*RANKS, *SECOND_PASS))
    second = metrics.second_pass(data.weight, data.bias)
    feed(second, data, sizes)
    agree(second.compute(), pure, left_out=RANKS)


@pytest.mark.parametrize("options", [{"global_mean": "classes"}, {"center_weight": True}], ids=str)
def test_options_reach_the_result(options):
    data = case("imbalanced")
    agree(filled(data, [9], keep_features=True, **options).measure(data.weight, data.bias), measure_collapse(*data, **options))


def test_no_cancellation_near_collapse_far_from_the_origin():
    data = case("balanced", noise=1e-6)
    far = data._replace(features=data.features + 1e3)
    # The shift rounds the features, so both get the same rounded ones.
    back = data._replace(features=far.features - 1e3)
    assert filled(far, [4]).compute().nc1 == pytest.approx(measure_collapse(back.features, back.labels).nc1, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_are_summed_in_float64(dtype):
    data = case("balanced", dtype=dtype)
    wide = data.features.double()
    agree(filled(data, [10]).compute(), measure_collapse(wide, data.labels), left_out=(*RANKS, "nearest_center_accuracy"))


def test_memory_does_not_grow_with_the_samples():
    data = case("balanced")
    metrics = filled(data, [6])
    before = {name: tuple(value.shape) for name, value in metrics.metric_state.items()}
    feed(metrics, data, [6])
    assert {name: tuple(value.shape) for name, value in metrics.metric_state.items()} == before
    assert sum(math.prod(shape) for shape in before.values()) == 10 * 10 + 2 * 6 * 10 + 2 * 6
    assert metrics.kept == []


def test_reset_and_updates_after_compute():
    data, other = case("balanced"), case("balanced", seed=1)
    metrics = filled(other, [9], keep_features=True)
    metrics.compute()
    metrics.reset()
    feed(metrics, data._replace(features=data.features[:30], labels=data.labels[:30]), [9])
    metrics.compute()
    feed(metrics, data._replace(features=data.features[30:], labels=data.labels[30:]), [9])
    agree(metrics.measure(data.weight, data.bias), measure_collapse(*data))


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_continues_from_the_state_of_the_original(copied):
    data = case("imbalanced")
    half = data._replace(features=data.features[:200], labels=data.labels[:200])
    metrics = filled(half, [17])
    metrics.compute()
    twin = copied(metrics)
    feed(twin, data._replace(features=data.features[200:], labels=data.labels[200:]), [17])
    agree(twin.compute(), filled(data, [17]).compute(), relative=1e-12)
    assert metrics.compute().num_samples == 200


def test_state_dict_round_trip():
    data = case("imbalanced")
    metrics, fresh = filled(data, [17]), CollapseMetrics(10, data.num_classes)
    metrics.persistent(True)
    fresh.persistent(True)
    fresh.load_state_dict(metrics.state_dict())
    fresh.update(data.features[:0], data.labels[:0])
    agree(fresh.compute(), metrics.compute(), relative=0)


def test_merge_state_joins_two_metrics():
    data = case("imbalanced", noise=1e-3)
    parts = [data._replace(features=data.features[part::2], labels=data.labels[part::2]) for part in range(2)]
    first, second = (filled(part, [6], keep_features=True) for part in parts)
    first.merge_state(second)
    agree(first.measure(data.weight, data.bias), measure_collapse(*data))
    with pytest.raises(ValueError, match=r"needs another CollapseMetrics\(10, 6\); got CollapseMetrics\(11, 6\)"):
        first.merge_state(CollapseMetrics(11, 6))
    with pytest.raises(TypeError, match=r"needs another CollapseMetrics; got dict"):
        first.merge_state({})


def test_an_invalid_batch_changes_nothing():
    data = case("balanced")
    metrics = filled(data, [9])
    before = metrics.compute().to_dict()
    for features, labels, message in [
        (data.features / 0, data.labels, "features must be finite; got 720"),
        (data.features, data.labels + 1, "got values from 1 to 6"),
        (data.features[:, 1:], data.labels, "with feature_dim=10; got (72, 9)"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            metrics.update(features, labels)
    assert metrics.compute().to_dict() == before


def test_refusals():
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        CollapseMetrics(4, 1)
    with pytest.raises(ValueError, match="feature_dim must be"):
        CollapseMetrics(0, 2)
    with pytest.raises(TypeError, match="feature_dim must be"):
        CollapseMetrics(2.5, 2)
    metrics = CollapseMetrics(4, 3)
    metrics.update(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="samples of 1 of 3 classes"):
        metrics.compute()
    metrics.update(torch.randn(5, 4), torch.ones(5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"= \(3, 4\), as nn.Linear has it; got \(2, 4\)"):
        metrics.measure(torch.zeros(2, 4))


def test_a_half_precision_default_dtype_changes_nothing():
    # As under Lightning's bf16-true.
    data = case("balanced", dtype=torch.bfloat16)
    expected = filled(data, [7], keep_features=True).measure(data.weight)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = filled(data, [7], keep_features=True).measure(data.weight)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.to_dict() == expected.to_dict()


def test_different_samples_in_the_second_pass_raise():
    data = case("balanced")
    second = filled(data, [9]).second_pass(data.weight)
    second.update(data.features[:40], data.labels[:40])
    with pytest.raises(ValueError, match=r"the same 72 samples as the first; got 40"):
        second.compute()
    with pytest.raises(ValueError, match=r"test_labels must be from"):
        second.update(data.features, data.labels + 1, test=True)


def test_it_can_be_reset_and_called():
    data, metrics = case("balanced"), CollapseMetrics(10, 6)
    assert metrics(data.features, data.labels) is None
    second = metrics.second_pass(data.weight)
    feed(second, data, [30])
    once = second.compute().to_dict()
    second.reset()
    assert second(data.features, data.labels) is None
    assert second.compute().to_dict() == once


def test_further_training_does_not_change_the_measured_classifier():
    data = case("balanced")
    weight, bias = data.weight.clone(), data.bias.clone()
    second = filled(data, [9]).second_pass(weight, bias)
    weight.neg_()
    bias.zero_()
    feed(second, data, [30])
    agree(second.compute(), measure_collapse(*data), left_out=RANKS)


OPTIONS = {"plain": {}, "keeping": {"keep_features": True}, "other mean": {"keep_features": True, "global_mean": "classes"}}


@pytest.mark.parametrize("order", [("plain", "keeping", "other mean"), ("other mean", "keeping", "plain"), ("keeping", "plain")])
def test_a_collection_of_metrics_with_and_without_features(order):
    data = case("imbalanced")
    metrics = [CollapseMetrics(10, data.num_classes, **OPTIONS[name]) for name in order]
    collection = MetricCollection({str(position): metric for position, metric in enumerate(metrics)})
    feed(collection, data, [50])
    assert len(collection.compute()) == len(order)
    for name, metric in zip(order, metrics, strict=True):
        if name != "plain":
            expected = measure_collapse(*data, global_mean=metric.global_mean)
            agree(metric.measure(data.weight, data.bias), expected, relative=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "turned",
    [
        lambda metric, dtype: metric.set_dtype(dtype),
        lambda metric, dtype: nn.ModuleList([metric]).to(dtype),
        lambda metric, dtype: nn.ModuleList([metric]).type(dtype),
    ],
    ids=["set_dtype", "to", "type"],
)
def test_casting_leaves_the_statistics_in_float64(turned, dtype):
    data = case("balanced", noise=1e-6)
    metrics = filled(data._replace(features=data.features[:30], labels=data.labels[:30]), [9])
    turned(metrics, dtype)
    feed(metrics, data._replace(features=data.features[30:], labels=data.labels[30:]), [9])
    second = metrics.second_pass(data.weight, data.bias)
    turned(second, dtype)
    feed(second, data, [9])
    turned(second, dtype)
    agree(second.compute(), measure_collapse(*data), left_out=RANKS)
    metrics.reset()
    feed(metrics, data, [9])
    assert metrics.compute().nc1 == pytest.approx(second.compute().nc1, rel=1e-12)
