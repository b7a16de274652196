import numpy as np
import pytest
import torch

from guided_collapse.metrics.formulas.statistics import class_statistics
from tests.metrics import oracle
from tests.metrics.cases import SIZES, case


@pytest.mark.parametrize("entries", [1, 100, 2**20])
@pytest.mark.parametrize("name", SIZES)
def test_counts_means_and_scatter(name, entries, monkeypatch):
    monkeypatch.setattr("guided_collapse.metrics.formulas.statistics.CHUNK_ENTRIES", entries)
    data = case(name)
    found = class_statistics(data.features, data.labels, data.num_classes)
    features, labels = data.features.numpy(), data.labels.numpy()
    means = oracle.class_means(features, labels)
    within, _ = oracle.covariances(features, labels, "samples")
    assert found.counts.tolist() == SIZES[name]
    assert found.present.tolist() == list(means)
    assert found.missing.tolist() == [c for c, size in enumerate(SIZES[name]) if size == 0]
    np.testing.assert_allclose(found.class_means.numpy(), np.array(list(means.values())), rtol=1e-12)
    np.testing.assert_allclose(found.scatter.numpy(), within * len(features), rtol=1e-9, atol=1e-12)
    for position, c in enumerate(means):
        own = features[labels == c]
        values = np.linalg.svd(own, compute_uv=False)
        assert float(found.class_scatter[position]) == pytest.approx(((own - means[c]) ** 2).sum(), rel=1e-12)
        assert float(found.numerical_ranks[position]) == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-9)
    np.testing.assert_allclose(found.global_mean("samples").numpy(), features.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.global_mean("classes").numpy(), np.mean(list(means.values()), axis=0), rtol=1e-12)


def test_an_unknown_global_mean_is_refused():
    found = class_statistics(torch.randn(6, 2), torch.arange(6) % 2, 2)
    with pytest.raises(ValueError, match="must be one of samples, classes; got 'median'"):
        found.global_mean("median")
