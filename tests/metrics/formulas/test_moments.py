import torch

from guided_collapse.metrics.formulas.moments import batch_moments, first_samples, merge, no_moments
from guided_collapse.metrics.formulas.statistics import class_statistics
from tests.metrics.cases import case


def test_parts_with_references_of_their_own_merge_exactly():
    data = case("missing", noise=1e-6)
    whole = class_statistics(data.features, data.labels, data.num_classes)
    total = no_moments(data.num_classes, 10)
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
    total = no_moments(data.num_classes, 10)
    for part in torch.arange(len(data.labels)).split(3):
        merge(total, batch_moments(data.features[part], data.labels[part], torch.full((6, 10), 1e5, dtype=torch.float64)))
    values = torch.linalg.eigvalsh(total.statistics().scatter)
    assert float(values[0]) >= -1e-14 * float(values[-1])


def test_first_samples():
    features = torch.arange(10.0).reshape(5, 2)
    assert first_samples(features, torch.tensor([2, 0, 2, 0, 2]), 3).tolist() == [[2, 3], [0, 0], [0, 1]]
