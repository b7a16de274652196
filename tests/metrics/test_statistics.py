import numpy as np
import pytest
import torch

from guided_collapse.metrics.statistics import (
    _add_large_class,
    _add_small_classes,
    _centered_rows,
    _is_nearly_singular,
    batch_moments,
    class_statistics,
    first_samples,
    merge,
    no_moments,
    product_dtype,
    symmetrized,
)
from tests.metrics import oracle
from tests.metrics.cases import SIZES, case


@pytest.mark.parametrize("entries", [1, 100, 2**20])
@pytest.mark.parametrize("name", SIZES)
def test_counts_means_and_scatter(name, entries, monkeypatch):
    monkeypatch.setattr("guided_collapse.metrics.statistics.CHUNK_ENTRIES", entries)
    data = case(name)
    found = class_statistics(data.features, data.labels, data.num_classes)
    features, labels = data.features.numpy(), data.labels.numpy()
    means = oracle.class_means(features, labels)
    within, _ = oracle.covariances(features, labels, "samples")
    assert found.counts.tolist() == SIZES[name]
    assert found.present.tolist() == list(means)
    np.testing.assert_allclose(found.class_means.numpy(), np.array(list(means.values())), rtol=1e-12)
    np.testing.assert_allclose(found.scatter.numpy(), within * len(features), rtol=1e-9, atol=1e-12)
    for position, c in enumerate(means):
        own = features[labels == c]
        values = np.linalg.svd(own, compute_uv=False)
        assert float(found.class_scatter[position]) == pytest.approx(((own - means[c]) ** 2).sum(), rel=1e-12)
        assert float(found.numerical_ranks[position]) == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-9)
    np.testing.assert_allclose(found.global_mean("samples").numpy(), features.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.global_mean("classes").numpy(), np.mean(list(means.values()), axis=0), rtol=1e-12)


WIDTH = 12


def collapsed(num_rows, noise, dtype, offset=1.0):
    return (offset + torch.randn(WIDTH) + noise * torch.randn(num_rows, WIDTH, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("noise", [1.0, 1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deviations_of_any_size_keep_all_digits(noise, dtype):
    features, classes = collapsed(900, noise, dtype), torch.tensor([0] * 500 + [1] * 400)
    indices = torch.randperm(900)
    deviations, found_means = _centered_rows(features, indices, classes, torch.empty_like(features))
    rows = features.double()[indices]
    means = torch.stack([rows[:500].mean(dim=0), rows[500:].mean(dim=0)])
    relative = 4 * torch.finfo(dtype).eps
    spread = float((rows - means[classes]).abs().max())
    torch.testing.assert_close(deviations.double(), rows - means[classes], rtol=relative, atol=relative * spread + 1e-13)
    torch.testing.assert_close(found_means, means, rtol=1e-14, atol=relative * spread + 1e-14)


@pytest.mark.parametrize(("scale", "dtype"), [(1e-25, torch.float64), (1.0, torch.float32), (1e25, torch.float64)])
def test_products_beyond_the_range_of_float32_are_in_float64(scale, dtype):
    features = collapsed(30, 1.0, torch.float32) * scale
    deviations, found_means = _centered_rows(
        features, torch.arange(30), torch.zeros(30, dtype=torch.int64), torch.empty_like(features)
    )
    assert deviations.dtype == dtype
    torch.testing.assert_close(found_means[0] / scale, features.double().mean(dim=0) / scale, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("noise", [1.0, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows_at_once", [7, 50, 1000])
def test_a_class_in_parts_equals_the_whole_class(rows_at_once, dtype, noise):
    features, samples = collapsed(100, noise, dtype), torch.randperm(100)
    scatters = torch.zeros(2, WIDTH, WIDTH, dtype=torch.float64)
    parts = _add_large_class(scatters[0], features, samples, torch.empty(rows_at_once, WIDTH, dtype=dtype))
    whole = _add_small_classes(scatters[1], features, [samples], torch.empty(100, WIDTH, dtype=dtype))
    deviations = features.double() - features.double().mean(dim=0)
    expected = deviations.T @ deviations
    values = torch.linalg.svdvals(features.double())
    rank = values.sum() ** 2 / values.square().sum()
    # In float64, the mean behind the expected values has rounding errors itself.
    relative = 1e-6 if dtype == torch.float32 else 1e-9
    for scatter, found in zip(scatters, (parts, whole), strict=True):
        torch.testing.assert_close(symmetrized(scatter), expected, rtol=relative, atol=relative * float(expected.max()))
        torch.testing.assert_close(found[0][0], features.double().mean(dim=0), rtol=0, atol=relative * noise)
        assert float(found[1]) == pytest.approx(float(expected.trace()), rel=relative)
        assert float(found[2]) == pytest.approx(float(rank), rel=1e-6)


@pytest.mark.parametrize("num_samples", [30, 400])
@pytest.mark.parametrize("noise", [0.0, 1e-5, 1e-4, 1e-3])
def test_ranks_of_few_directions_in_many_dimensions(noise, num_samples):
    # Square roots of rounding errors in 200 empty directions would count as much as the three real ones.
    basis = torch.linalg.qr(torch.randn(200, 3, dtype=torch.float64)).Q
    features = (torch.randn(num_samples, 3, dtype=torch.float64) @ basis.T + noise * torch.randn(num_samples, 200)).float()
    values = torch.linalg.svdvals(features.double())
    scatter, samples = torch.zeros(200, 200, dtype=torch.float64), torch.arange(num_samples)
    if num_samples < 200:
        found = _add_small_classes(scatter, features, [samples], torch.empty_like(features))
    else:
        # The last part is a single sample, with deviation zero.
        found = _add_large_class(scatter, features, samples, torch.empty(num_samples - 1, 200))
    assert float(found[2]) == pytest.approx(float(values.sum() ** 2 / (values**2).sum()), rel=2e-4)


def test_parts_with_different_references_merge_exactly():
    data = case("missing", noise=1e-6)
    whole = class_statistics(data.features, data.labels, data.num_classes)
    total = no_moments(10, data.num_classes)
    for part in torch.arange(len(data.labels)).split(11):
        features, labels = data.features[part], data.labels[part]
        merge(total, batch_moments(features, labels, first_samples(features, labels, data.num_classes)))
    found = total.statistics()
    assert torch.equal(found.counts, whole.counts)
    torch.testing.assert_close(found.class_means, whole.class_means, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(found.scatter, whole.scatter, rtol=1e-8, atol=1e-9 * float(whole.scatter.abs().max()))
    torch.testing.assert_close(found.class_scatter, whole.class_scatter, rtol=1e-9, atol=0)


def test_scatter_stays_positive_semidefinite_with_a_bad_reference():
    data = case("balanced", noise=1e-5)
    total = no_moments(10, data.num_classes)
    for part in torch.arange(len(data.labels)).split(3):
        merge(total, batch_moments(data.features[part], data.labels[part], torch.full((6, 10), 1e5, dtype=torch.float64)))
    values = torch.linalg.eigvalsh(total.statistics().scatter)
    assert float(values[0]) >= -1e-14 * float(values[-1])


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_are_in_float32_unless_the_user_allows_less_precision(precision):
    assert {product_dtype(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)} == {torch.float32}
    assert product_dtype(torch.float64) == torch.float64
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert product_dtype(torch.float32) == torch.float64
    finally:
        torch.set_float32_matmul_precision(before)


def test_near_singularity_ignores_units_and_dimensions_without_scatter():
    rows = torch.randn(50, 4, dtype=torch.float64) * torch.tensor([1.0, 1e-9, 0.0, 1e9])
    assert not _is_nearly_singular(rows.T @ rows, 1e-4)
    rows[:, 2] = rows[:, 0] + 1e9 * rows[:, 1] + 1e-3 * torch.randn(50)
    assert _is_nearly_singular(rows.T @ rows, 1e-4)
    assert not _is_nearly_singular(rows.T @ rows, 1e-9)
