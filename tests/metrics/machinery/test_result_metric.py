"""The metrics of a stream within torchmetrics: collections, and modules that are turned to another type."""

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection

from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.machinery.streaming import CollapseMetrics
from tests.metrics.cases import case
from tests.metrics.machinery.test_streaming import RANKS, agree, feed, filled

OPTIONS = {"plain": {}, "keeping": {"keep_features": True}, "other mean": {"keep_features": True, "global_mean": "classes"}}


@pytest.mark.parametrize("order", [("plain", "keeping", "other mean"), ("other mean", "keeping", "plain"), ("keeping", "plain")])
def test_a_collection_of_metrics_with_and_without_features(order):
    data = case("imbalanced")
    metrics = [CollapseMetrics(data.num_classes, 10, **OPTIONS[name]) for name in order]
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
def test_another_type_leaves_the_statistics_in_float64(turned, dtype):
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
