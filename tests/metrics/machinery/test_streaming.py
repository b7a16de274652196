"""The stream equals the pure function, whatever the batches, their order and the references."""

import copy
import math
import pickle
import re

import pytest
import torch

from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.machinery.streaming import CollapseMetrics
from tests.metrics.cases import SIZES, case


def agree(streamed, pure, *, left_out=(), relative=1e-9, absolute=1e-12):
    """Every number of the two results agrees, but for those left out on purpose."""
    streamed, pure = streamed.to_dict(), pure.to_dict()
    known = {name for name, value in streamed.items() if value is not None}
    assert {name for name, value in pure.items() if value is not None} - known == set(left_out)
    for name in known - {"left_out", "notes", "global_mean", "counts"}:
        # Without scatter where the means differ, the index is 0 up to rounding.
        floor = absolute if name in ("cosine_margins", "vci") else 0
        assert streamed[name] == pytest.approx(pure[name], rel=relative, abs=floor), name
    for name in ("counts", "global_mean"):
        assert streamed[name] == pure[name]


def filled(data, sizes, **options):
    metrics = CollapseMetrics(data.num_classes, data.features.shape[1], **options)
    feed(metrics, data, sizes)
    return metrics


def feed(metrics, data, sizes):
    start = 0
    while start < len(data.labels):
        for size in sizes:
            metrics.update(data.features[start : start + size], data.labels[start : start + size])
            start += size


RANKS = ("numerical_rank", "numerical_ranks")
SECOND_PASS = ("nc4", "accuracy", "nearest_center_accuracy", "mean_cosine_margin", "cosine_margins")


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


def test_order_does_not_matter():
    data = case("imbalanced", noise=1e-6)
    order = torch.randperm(len(data.labels))
    shuffled = data._replace(features=data.features[order], labels=data.labels[order])
    agree(filled(shuffled, [13]).compute(), filled(data, [5]).compute(), relative=1e-9)


@pytest.mark.parametrize("distance", [0.0, 1.0, 1e4])
def test_references_change_no_number(distance):
    data = case("balanced")
    references = distance * torch.randn(data.num_classes, data.features.shape[1])
    agree(filled(data, [11], reference_means=references).compute(), filled(data, [11]).compute(), relative=1e-9)


def test_near_collapse_far_from_the_origin_nothing_cancels():
    data = case("balanced", noise=1e-6)
    far = data._replace(features=data.features + 1e3)
    # The shift itself rounds the features, so the same rounded features go to both.
    back = data._replace(features=far.features - 1e3)
    assert filled(far, [4]).compute().nc1 == pytest.approx(measure_collapse(back.features, back.labels).nc1, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_are_summed_in_float64(dtype):
    data = case("balanced", dtype=dtype)
    wide = data.features.double()
    agree(filled(data, [10]).compute(), measure_collapse(wide, data.labels), left_out=(*RANKS, "nearest_center_accuracy"))


def test_stored_features_give_everything():
    data = case("missing")
    agree(filled(data, [8], keep_features=True).measure(data.weight, data.bias), measure_collapse(*data), relative=1e-12)


def test_memory_does_not_grow_with_the_samples():
    data = case("balanced")
    metrics = filled(data, [6])
    before = {name: tuple(value.shape) for name, value in metrics.metric_state.items()}
    feed(metrics, data, [6])
    assert {name: tuple(value.shape) for name, value in metrics.metric_state.items()} == before
    assert sum(math.prod(shape) for shape in before.values()) == 10 * 10 + 2 * 6 * 10 + 2 * 6
    assert metrics.kept == []


def test_reset_forgets_and_updates_after_compute_count():
    data, other = case("balanced"), case("balanced", seed=1)
    metrics = filled(other, [9], keep_features=True)
    metrics.compute()
    metrics.reset()
    feed(metrics, data._replace(features=data.features[:30], labels=data.labels[:30]), [9])
    metrics.compute()
    feed(metrics, data._replace(features=data.features[30:], labels=data.labels[30:]), [9])
    agree(metrics.measure(data.weight, data.bias), measure_collapse(*data))


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_goes_on_where_the_original_stood(copied):
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
    metrics, fresh = filled(data, [17]), CollapseMetrics(data.num_classes, 10)
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
    with pytest.raises(ValueError, match=r"needs another CollapseMetrics\(6, 10\)"):
        first.merge_state(CollapseMetrics(6, 11))


def test_calling_the_metric_updates_it():
    data = case("balanced")
    metrics = CollapseMetrics(6, 10)
    assert metrics(data.features, data.labels) is None
    assert metrics.compute().num_samples == len(data.labels)


def test_a_refused_batch_changes_nothing():
    data = case("balanced")
    metrics = filled(data, [9])
    before = metrics.compute().to_dict()
    for features, labels, message in [
        (data.features / 0, data.labels, "features must be finite; got 720"),
        (data.features, data.labels + 1, "got values from 1 to 6"),
        (data.features[:, 1:], data.labels, "must have feature_dim=10 columns; got (72, 9)"),
        (data.features, data.labels[1:], "labels must be (num_samples,) = (72,)"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            metrics.update(features, labels)
    assert metrics.compute().to_dict() == before


def test_refusals():
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        CollapseMetrics(1, 4)
    with pytest.raises(ValueError, match="feature_dim must be a whole number, at least 1; got 0"):
        CollapseMetrics(2, 0)
    with pytest.raises(ValueError, match=r"reference_means must be .* = \(3, 4\); got \(4, 3\)"):
        CollapseMetrics(3, 4, reference_means=torch.zeros(4, 3))
    metrics = CollapseMetrics(3, 4)
    metrics.update(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="samples of 1 of 3 classes"):
        metrics.compute()
    metrics.update(torch.randn(5, 4), torch.ones(5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"= \(3, 4\); got \(2, 4\)"):
        metrics.measure(torch.zeros(2, 4))


def test_a_metric_in_a_module_of_half_precision_gives_what_it_gives_alone():
    # As Lightning's bf16-true has it: the module is turned, and half precision is the default type while it runs.
    data = case("balanced")._replace(features=case("balanced").features.bfloat16())
    expected = filled(data, [7]).compute()
    torch.set_default_dtype(torch.bfloat16)
    try:
        module = torch.nn.ModuleDict({"metric": CollapseMetrics(data.num_classes, data.features.shape[1])}).to(torch.bfloat16)
        feed(module["metric"], data, [7])
        second = module["metric"].second_pass(data.weight.bfloat16())
        feed(second, data, [7])
        found, whole = module["metric"].compute(), second.compute()
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.nc1 == whole.nc1 == expected.nc1
    assert whole.accuracy is not None
