import numpy as np
import pytest
import torch

from guided_collapse.metrics.statistics import _is_nearly_singular, class_statistics
from tests.metrics import oracle
from tests.metrics.cases import SIZES, case, filled


@pytest.mark.parametrize("entries", [1, 100, 2**20])
@pytest.mark.parametrize("name", SIZES)
def test_counts_means_and_scatter(name, entries, monkeypatch):
    monkeypatch.setattr("guided_collapse.metrics.statistics.CHUNK_ENTRIES", entries)
    data = case(name)
    features, labels = data.features.numpy(), data.labels.numpy()
    means = oracle.class_means(features, labels)
    within, _ = oracle.covariances(features, labels, "samples")
    whole = class_statistics(data.features, data.labels, data.num_classes)
    for found in (whole, filled(data, [11]).statistics()):
        assert found.counts.tolist() == SIZES[name]
        assert found.present.tolist() == list(means)
        np.testing.assert_allclose(found.class_means.numpy(), np.array(list(means.values())), rtol=1e-12)
        np.testing.assert_allclose(found.scatter.numpy(), within * len(features), rtol=1e-9, atol=1e-12)
        scatter = [((features[labels == c] - mean) ** 2).sum() for c, mean in means.items()]
        np.testing.assert_allclose(found.class_scatter.numpy(), scatter, rtol=1e-12)
    ranks = []
    for c in means:
        values = np.linalg.svd(features[labels == c], compute_uv=False)
        ranks.append(values.sum() ** 2 / (values**2).sum())
    np.testing.assert_allclose(whole.numerical_ranks.numpy(), ranks, rtol=1e-9)


@pytest.mark.parametrize("num_samples", [20, 900], ids=["small", "large"])
@pytest.mark.parametrize("noise", [1.0, 1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scatter_has_all_digits_however_small_it_is(noise, dtype, num_samples, monkeypatch):
    monkeypatch.setattr("guided_collapse.metrics.statistics.CHUNK_ENTRIES", 2000)
    labels = torch.randperm(2 * num_samples) % 2
    features = (5 + torch.randn(2, 40)[labels] + noise * torch.randn(len(labels), 40, dtype=torch.float64)).to(dtype)
    found = class_statistics(features, labels, 2)
    rows = features.double()
    means = torch.stack([rows[labels == c].mean(dim=0) for c in range(2)])
    deviations = rows - means[labels]
    expected = deviations.T @ deviations
    relative = 1e-6 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(found.scatter, expected, rtol=relative, atol=relative * float(expected.max()) + 1e-24)
    torch.testing.assert_close(found.class_means, means, rtol=1e-14, atol=10 * relative * noise)


@pytest.mark.parametrize("num_samples", [30, 400])
@pytest.mark.parametrize("noise", [0.0, 1e-5, 1e-4, 1e-3])
def test_ranks_of_few_directions_in_many_dimensions(noise, num_samples):
    # The square root of what rounding leaves in 200 vanishing directions would count as much as the three that are there.
    basis = torch.linalg.qr(torch.randn(200, 3, dtype=torch.float64)).Q
    features = (torch.randn(num_samples, 3, dtype=torch.float64) @ basis.T + noise * torch.randn(num_samples, 200)).float()
    others = torch.randn(1000, 200)
    labels = torch.cat([torch.zeros(num_samples), torch.ones(1000)]).long()
    values = torch.linalg.svdvals(features.double())
    found = class_statistics(torch.cat([features, others]), labels, 2).numerical_ranks
    assert float(found[0]) == pytest.approx(float(values.sum() ** 2 / (values**2).sum()), rel=2e-4)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_matmul_precision_changes_nothing(precision):
    data = case("imbalanced", dtype=torch.float32)
    exact = class_statistics(data.features.double(), data.labels, 6)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert torch.equal(class_statistics(data.features, data.labels, 6).scatter, exact.scatter)
    finally:
        torch.set_float32_matmul_precision(before)


def test_nearly_singular_whatever_the_units_and_the_dimensions_without_scatter():
    rows = torch.randn(50, 4, dtype=torch.float64) * torch.tensor([1.0, 1e-9, 0.0, 1e9])
    assert not _is_nearly_singular(rows.T @ rows, 1e-4)
    rows[:, 2] = rows[:, 0] + 1e9 * rows[:, 1] + 1e-3 * torch.randn(50)
    assert _is_nearly_singular(rows.T @ rows, 1e-4)
    assert not _is_nearly_singular(rows.T @ rows, 1e-9)
