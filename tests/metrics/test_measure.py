"""Measurements against slow formulas, exact values at collapse, files, and errors."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch

from guided_collapse import measure_collapse, metrics
from guided_collapse.geometry.simplex import simplex_etf
from guided_collapse.metrics.measure import read_arrays
from tests.metrics import exact, oracle
from tests.metrics.cases import RANKS, SIZES, Case, agree, case, feed, filled


@pytest.mark.parametrize("center_weight", [False, True])
@pytest.mark.parametrize("kind", ["samples", "classes"])
@pytest.mark.parametrize("name", SIZES)
def test_every_metric_equals_the_slow_formula(name, kind, center_weight):
    data = case(name)
    result = measure_collapse(*data, global_mean=kind, center_weight=center_weight)
    expected = oracle.measure(*(part.numpy() for part in data), kind=kind, center_weight=center_weight)
    np.testing.assert_allclose(result.cosine_margins.numpy(), expected.pop("cosine_margins"), rtol=0, atol=1e-13)
    for field, value in expected.items():
        assert getattr(result, field) == (None if value is None else pytest.approx(value, rel=1e-9)), field
    assert (result.global_mean, result.center_weight) == (kind, center_weight)
    assert 0 < result.nc4 < 1


@pytest.mark.parametrize("name", SIZES)
def test_float32_features_give_the_same_metrics(name):
    data = case(name, dtype=torch.float32)
    result = measure_collapse(*data)
    expected = oracle.measure(
        data.features.double().numpy(), data.labels.numpy(), data.weight.double().numpy(), data.bias.double().numpy()
    )
    np.testing.assert_allclose(result.cosine_margins.numpy(), expected.pop("cosine_margins"), rtol=0, atol=2e-6)
    assert result.mean_cosine_margin == pytest.approx(expected.pop("mean_cosine_margin"), abs=1e-6)
    for field, value in expected.items():
        # If fewer samples than dimensions leave directions without scatter, the index is 0 up to rounding.
        floor = 1e-5 if (name, field) == ("wide", "vci") else 1e-8
        assert getattr(result, field) == (None if value is None else pytest.approx(value, rel=1e-6, abs=floor)), field


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast_changes_nothing(dtype):
    data = case("imbalanced", dtype=dtype)
    usual = measure_collapse(*data).to_dict()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure_collapse(*data).to_dict() == usual


def test_a_test_set_is_judged_by_the_class_means_of_the_training_set():
    data, other = case("imbalanced"), case("imbalanced", seed=1)
    result = measure_collapse(*data, test_features=other.features, test_labels=other.labels)
    features, labels, weight, bias = (part.numpy() for part in data)
    means, middle = oracle.class_means(features, labels), features.mean(axis=0)
    expected = oracle.samples(other.features.numpy(), other.labels.numpy(), means, middle, weight, bias)
    assert result.test_nc4 == expected["nc4"]
    assert result.test_accuracy == expected["accuracy"]
    assert result.test_nearest_center_accuracy == expected["nearest_center_accuracy"]
    assert result.test_mean_cosine_margin == pytest.approx(expected["mean_cosine_margin"], rel=1e-12)
    assert result.test_nc4 != result.nc4
    assert result.nc1 == measure_collapse(*data).nc1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_a_perfect_simplex_etf_is_perfect(num_classes, dtype):
    frame = simplex_etf(num_classes, dtype=dtype)
    labels = torch.arange(num_classes).repeat(7)
    result = measure_collapse(3 * frame[labels], labels, frame, torch.zeros(num_classes, dtype=dtype))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    small = ("nc1", "nc2", "nc2_means", "nc3", "nc4", "equinorm", "weight_equinorm", "mean_equinorm", "mean_equiangularity")
    for field in (*small, "weight_equiangularity", "etf_distance", "cdnv", "vci", "trace_ratio", "bias_collapse"):
        assert 0 <= getattr(result, field) <= tolerance, field
    ideal = num_classes / (num_classes - 1)
    assert result.ideal_cosine_margin == ideal
    assert result.class_margin == pytest.approx(ideal, rel=tolerance)
    assert result.ideal_angle == pytest.approx(math.degrees(math.acos(-1 / (num_classes - 1))))
    assert result.weight_angle == pytest.approx(result.ideal_angle, abs=0.1 * math.sqrt(tolerance))
    assert result.mean_angle == pytest.approx(result.ideal_angle, abs=0.1 * math.sqrt(tolerance))
    assert result.mean_cosine_margin == pytest.approx(ideal, rel=tolerance)
    assert result.cosine_margins.numpy() == pytest.approx(np.full(7 * num_classes, ideal), rel=tolerance)
    assert result.accuracy == result.nearest_center_accuracy == 1
    assert result.numerical_rank == pytest.approx(1, abs=1e-6)


def test_a_perfect_tight_frame_is_perfect_with_more_classes_than_dimensions():
    frame = torch.cat([torch.eye(3), -torch.eye(3)])
    labels = torch.arange(6).repeat(7)
    features = 3 * frame[labels]
    streamed = filled(Case(features, labels, frame, torch.zeros(6)), [20]).measure(frame)
    small = ("nc1", "nc2", "nc2_means", "nc3", "equinorm", "weight_equinorm", "mean_equinorm", "etf_distance", "cdnv", "vci")
    for result in (measure_collapse(features, labels, frame), streamed):
        for field in small:
            assert 0 <= getattr(result, field) <= 1e-6, field
        assert result.weight_angle == pytest.approx(result.ideal_angle) == pytest.approx(90)
        assert result.class_margin == pytest.approx(result.ideal_cosine_margin) == pytest.approx(1)
        assert result.weight_equiangularity is result.mean_equiangularity is None
        assert "otherwise frames differ in their angles" in result.left_out["weight_equiangularity"]
    # Without two classes, there is room for a simplex of the other means, but not of all weights.
    seen = labels < 4
    fewer = measure_collapse(features[seen], labels[seen], frame)
    assert fewer.weight_equiangularity is None
    assert fewer.mean_equiangularity > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_collapse_agrees_with_exact_arithmetic(dtype):
    labels = torch.tensor([0] * 40 + [1] * 10 + [2] * 6 + [3] * 4)
    means = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.float64)
    features = (means[labels] + 1e-6 * torch.randn(60, 3, dtype=torch.float64)).to(dtype)
    result = measure_collapse(features, labels)
    assert 0 < result.nc1 < 1e-10
    assert result.nc1 == pytest.approx(exact.nc1(features.tolist(), labels.tolist()), rel=1e-6)
    assert result.vci == pytest.approx(exact.variability_collapse_index(features.tolist(), labels.tolist()), rel=1e-6)


@pytest.mark.parametrize("sizes", [[4000, 1500, 700, 100], [60, 50, 40, 30]], ids=["large", "small"])
def test_float32_near_collapse_in_many_dimensions(sizes):
    labels = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels))]
    means = torch.nn.functional.normalize(torch.randn(4, 64, dtype=torch.float64))
    features = (means[labels] + 1e-6 * torch.randn(len(labels), 64, dtype=torch.float64)).float()
    narrow, wide = measure_collapse(features, labels), measure_collapse(features.double(), labels)
    assert 0 < narrow.nc1 < 1e-9
    for field in ("nc1", "cdnv", "trace_ratio", "numerical_rank"):
        assert getattr(narrow, field) == pytest.approx(getattr(wide, field), rel=1e-6), field
    assert narrow.vci == pytest.approx(wide.vci, rel=1e-4)


@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-9, 0.0])
def test_nc1_is_never_negative_and_falls_with_the_square_of_the_noise(noise):
    result = measure_collapse(*case("balanced", noise=noise))
    loud = measure_collapse(*case("balanced", noise=1e-3))
    assert result.nc1 >= 0
    assert result.nc1 == pytest.approx(loud.nc1 * (noise / 1e-3) ** 2, rel=1e-4 if noise > 1e-9 else 1e-2, abs=1e-28)


def test_coinciding_means_do_not_give_plausible_metrics():
    labels = torch.arange(30) % 3
    features = torch.randn(10, 4).repeat_interleave(3, dim=0)
    result = measure_collapse(features, labels, torch.randn(3, 4))
    assert math.isnan(result.nc1)
    assert result.between_class_rank == 0
    assert result.vci == 1
    assert math.isinf(result.cdnv)
    assert result.to_dict()["nc1"] is None
    assert any("coincide" in note for note in result.notes)


def test_two_coinciding_means_are_detected():
    data = case("balanced")
    features, labels = data.features.clone(), data.labels
    features[labels == 1] = features[labels == 0] + 0.0
    result = measure_collapse(features, labels)
    assert result.between_class_rank == 4
    assert math.isinf(result.cdnv)
    assert any("4 of 5 dimensions" in note for note in result.notes)


def test_missing_classes_are_listed_and_change_nothing():
    data = case("missing")
    result = measure_collapse(data.features, data.labels, num_classes=7)
    assert result.missing_classes == (1, 4)
    assert result.counts == (20, 0, 15, 15, 0, 9, 11)
    assert any("no samples of class 1, 4" in note for note in result.notes)
    present = torch.tensor([0, 2, 3, 5, 6])
    renamed = measure_collapse(data.features, torch.searchsorted(present, data.labels))
    for field in ("nc1", "nc2_means", "cdnv", "vci", "etf_distance", "mean_equinorm", "mean_equiangularity", "numerical_rank"):
        assert getattr(result, field) == getattr(renamed, field), field


@pytest.mark.parametrize("weight_scale", [1e-100, 1.0, 1e100])
@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_features_and_weights_of_any_scale_give_the_same_numbers(scale, weight_scale):
    data = case("imbalanced")
    if scale * weight_scale > 1e100:
        data = data._replace(bias=torch.zeros(6, dtype=torch.float64))
    scaled = data._replace(
        features=data.features * scale, weight=data.weight * weight_scale, bias=data.bias * (scale * weight_scale)
    )
    usual = measure_collapse(*data)
    usual = dataclasses.replace(usual, bias_collapse=usual.bias_collapse * scale * weight_scale)
    agree(measure_collapse(*scaled), usual)
    second = filled(scaled, [50]).second_pass(scaled.weight, scaled.bias)
    feed(second, scaled, [50])
    agree(second.compute(), usual, left_out=RANKS)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8], ids=str)
def test_labels_of_any_integer_type_and_features_of_any_layout(dtype):
    num_classes = min(torch.iinfo(dtype).max, 250)
    labels = torch.arange(3 * num_classes) % num_classes
    weight = torch.randn(num_classes, 10, dtype=torch.float64)
    data = Case(weight[labels] + torch.randn(len(labels), 10), labels, weight, torch.randn(num_classes, dtype=torch.float64))
    usual = measure_collapse(*data)
    labels = labels.to(dtype)
    features = torch.stack([data.features, data.features], dim=2)[:, :, 0].requires_grad_()
    assert not features.is_contiguous()
    weight.requires_grad_()
    agree(
        measure_collapse(features, labels, weight, data.bias, test_features=features, test_labels=labels),
        measure_collapse(*data, test_features=data.features, test_labels=data.labels),
    )
    changed = data._replace(features=features, labels=labels, weight=weight)
    for keep in (False, True):
        metrics = filled(changed, [7, 0, 100], keep_features=keep)
        second = metrics.second_pass(weight, data.bias)
        feed(second, changed, [7, 0, 100])
        agree(second.compute(), usual, left_out=() if keep else RANKS)


def refusals():
    data = case("balanced")
    one_hot = torch.nn.functional.one_hot(data.labels).double()
    broken = data.features.clone()
    broken[3, 2], broken[5, 1] = math.nan, math.inf
    one = torch.zeros_like(data.labels)
    yield "72 rows, 71 labels", (data.features, data.labels[:-1]), {}, "labels must be (num_samples,) = (72,)"
    yield "label too large", (data.features, data.labels + 1, data.weight), {}, "got values from 1 to 6"
    yield "label negative", (data.features, data.labels - 1), {}, "got values from -1 to 4"
    yield "NaN", (broken, data.labels), {}, "got 2 NaN or infinite entries of 720"
    yield "weight transposed", (data.features, data.labels, data.weight.T), {}, "= (10, 10), as nn.Linear has it; got (10, 6)"
    yield "weight too narrow", (data.features, data.labels, data.weight[:, 1:]), {}, "= (6, 10), as nn.Linear has it; got (6, 9)"
    yield "weight NaN", (data.features, data.labels, data.weight / 0), {}, "weight must be finite"
    yield "bias", (data.features, data.labels, data.weight, data.bias[1:]), {}, "= (6,), as nn.Linear has it; got (5,)"
    yield "bias alone", (data.features, data.labels, None, data.bias), {}, "bias requires a weight"
    yield "one class", (data.features, one), {"num_classes": 3}, "samples of 1 of 3 classes"
    yield "one class, uncounted", (data.features, one), {}, "num_classes must be at least 2"
    yield "no samples", (data.features[:0], data.labels[:0]), {"num_classes": 3}, "samples of 0 of 3 classes"
    yield "float labels", (data.features, data.labels.float()), {}, "Use labels.long()"
    yield "soft labels", (data.features, one_hot), {}, "labels.argmax(dim=1) for soft labels"
    yield "one-hot labels", (data.features, one_hot.long()), {}, "got (72, 6)"
    yield "huge labels", (data.features, data.labels * 10**9), {}, "got up to 5000000000 for 72 samples. Number the classes from 0"
    for size in (1e145, 1e-145):
        yield f"times {size}", (data.features * size, data.labels), {}, "features must be between 1e-140 and 1e+140 in size"
        yield f"weight times {size}", (data.features, data.labels, data.weight * size), {}, "weight must be between 1e-140 and"
    yield "integer features", (data.features.long(), data.labels), {}, "features must be floating-point; got torch.int64"
    yield "images", (data.features[:, :, None], data.labels), {}, "got (72, 10, 1)"
    yield "array", (data.features.numpy(), data.labels), {}, "got ndarray"
    yield "weight list", (data.features, data.labels, data.weight.tolist()), {}, "weight must be a floating-point tensor; got list"
    yield "global mean", data, {"global_mean": "median"}, "one of samples, classes; got 'median'"
    yield "test alone", data, {"test_features": data.features}, "got only test_features"
    yield "test width", data, {"test_features": data.features[:, 1:], "test_labels": data.labels}, "feature_dim=10; got (72, 9)"
    yield "test NaN", data, {"test_features": broken, "test_labels": data.labels}, "test_features must be finite; got 2"
    yield "test empty", data, {"test_features": broken[:0], "test_labels": one[:0]}, "test_features must have at least one row"


WRONG_TYPES = ("float labels", "soft labels", "integer features", "array", "weight list")


@pytest.mark.parametrize(
    ("arguments", "options", "message", "name"), [pytest.param(*rest, name, id=name) for name, *rest in refusals()]
)
def test_refusals(name, arguments, options, message):
    with pytest.raises(TypeError if name in WRONG_TYPES else ValueError, match=re.escape(message)):
        measure_collapse(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SIZES)
def test_single_metrics_agree_with_measure_collapse(name, dtype):
    features, labels, weight, bias = case(name, dtype=dtype)
    whole = measure_collapse(features, labels, weight, bias)
    assert metrics.nc1(features, labels) == whole.nc1
    assert metrics.nc2(weight) == whole.nc2
    assert metrics.nc3(features, labels, weight) == whole.nc3
    assert metrics.nc4(features, labels, weight, bias) == whole.nc4
    without_bias = measure_collapse(features, labels, weight, torch.zeros(len(weight)))
    assert metrics.nc4(features, labels, weight) == without_bias.nc4


def test_single_metrics_check_the_weight():
    for weight, message in ((torch.ones(1, 3), "at least 2.*num_classes=1"), (torch.ones(3), r"feature_dim\).*got \(3,\)")):
        with pytest.raises(ValueError, match=message):
            metrics.nc2(weight)
    for metric in (metrics.nc3, metrics.nc4):
        with pytest.raises(TypeError, match=r"weight must be .* got None"):
            metric(*case("balanced")[:2], None)


def test_only_arrays_of_the_right_kind_are_read(tmp_path):
    path, features = tmp_path / "arrays.npz", np.zeros((2, 3), np.float16)
    np.savez(path, features=features, labels=np.arange(2, dtype=np.uint8), extra=np.ones(1))
    assert {name: tuple(array.shape) for name, array in read_arrays(path).items()} == {"features": (2, 3), "labels": (2,)}
    np.savez(path, features=features, labels=np.zeros(2))
    with pytest.raises(ValueError, match=r"labels in .* must be integers; got float64"):
        read_arrays(path)
    np.savez(path, features=np.array([{}], dtype=object), labels=np.zeros(1, dtype=int))
    with pytest.raises(ValueError, match="holds pickled objects, which are never loaded"):
        read_arrays(path)
    np.savez(path, features=features, labels=np.array(["cat", "dog"]))
    with pytest.raises(ValueError, match=r"labels in .* must be integers; got <U3"):
        read_arrays(path)
    with pytest.raises(ValueError, match=r"nowhere\.npz must be a readable .npz file of numbers; .* No such file"):
        read_arrays(tmp_path / "nowhere.npz")
