import numpy as np
import pytest
import torch

from guided_collapse import RunningClassMeans
from guided_collapse.heads.batch import center_batch, sums_of_all_classes

NUM_CLASSES = 5


def features_far_from_zero(offset):
    """20,000 features of five classes, float32, whose classes differ by little beside what they have in common."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, NUM_CLASSES, (20_000,), generator=generator)
    classes = torch.randn(NUM_CLASSES, 3, generator=generator)
    return offset + classes[labels] + torch.randn(20_000, 3, generator=generator), labels


def exact_centered_means(features, labels):
    """Class means minus the global mean at unit norm, in float64 by numpy."""
    values, classes = features.numpy().astype(np.float64), labels.numpy()
    means = np.stack([values[classes == c].mean(axis=0) for c in range(NUM_CLASSES)]) - values.mean(axis=0)
    return torch.from_numpy(means / np.linalg.norm(means))


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5])
def test_class_means_are_right_however_far_the_features_are_from_zero(offset):
    features, labels = features_far_from_zero(offset)
    found = RunningClassMeans(3, NUM_CLASSES).update(features, labels).centered_class_means
    # The differences between features are exact in float32, and the sums over a class have some 4000 terms of their size.
    torch.testing.assert_close(found.double(), exact_centered_means(features, labels), rtol=0, atol=2e-6)


def test_totals_and_the_mean_of_a_batch():
    points, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]), torch.tensor([2, 0, 2])
    batch = center_batch(points, labels)
    torch.testing.assert_close(batch.global_mean, torch.tensor([3.0, 13 / 3]))
    sums, counts, _ = sums_of_all_classes(batch._replace(centered=points), 3)
    assert sums.tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 9.0]]
    assert counts.tolist() == [1, 0, 2]
