import copy

import pytest
import torch

from guided_collapse import RunningClassMeans
from guided_collapse.heads.batch import LABEL_TYPES, center_batch
from guided_collapse.heads.class_means import RunningMean


class SlowRunningMeans:
    """The definition of the running means, class by class in plain Python."""

    def __init__(self, feature_dim, num_classes):
        self.running = torch.zeros(num_classes, feature_dim, dtype=torch.float64)
        self.seen = set()
        self.steps = 0
        self.num_classes = num_classes

    def update(self, features, labels):
        present = set(labels.tolist())
        centered = torch.zeros_like(self.running)
        for label in present:
            centered[label] = features[labels == label].mean(0) - features.mean(0)
        rms = (sum(centered[label].norm() ** 2 for label in present) / len(present)) ** 0.5
        for label in self.seen - present:
            running_rms = (sum(self.running[known].norm() ** 2 for known in self.seen) / len(self.seen)) ** 0.5
            centered[label] = rms / running_rms * self.running[label]
        batch = centered / centered.norm()
        self.steps += 1
        share = max(2 / (self.steps + 1), 1e-4)
        previous = self.running.clone()
        if self.steps > 1:
            for label in present - self.seen:
                previous[label] = batch[label]
        self.running = share * batch + (1 - share) * previous
        self.seen |= present


@pytest.mark.parametrize("classes_in_batch", [6, 3, 1])
def test_against_the_definition(classes_in_batch):
    generator = torch.Generator().manual_seed(0)
    means, slow = RunningClassMeans(4, 6).double(), SlowRunningMeans(4, 6)
    for _ in range(12):
        present = torch.randperm(6, generator=generator)[:classes_in_batch]
        labels = present[torch.randint(0, classes_in_batch, (15,), generator=generator)]
        features = torch.randn(15, 4, dtype=torch.float64, generator=generator) + labels[:, None]
        if classes_in_batch == 1:
            # A single class has nothing to be centered against but itself: all means vanish.
            means.update(features, labels)
            continue
        slow.update(features, labels)
        updated = means.update(features, labels)
        torch.testing.assert_close(updated.centered_class_means, slow.running)
        torch.testing.assert_close(means.running, slow.running)
        torch.testing.assert_close(updated.global_mean, features.mean(0))
        assert set(means.seen.nonzero().flatten().tolist()) == slow.seen
    assert int(means.steps) == 12
    assert torch.isfinite(means.running).all()
    if classes_in_batch == 1:
        assert torch.equal(means.running, torch.zeros_like(means.running))


def test_with_every_class_in_every_batch_it_is_the_papers_formula():
    means = RunningClassMeans(4, 3).double()
    labels = torch.arange(9) % 3
    running = torch.zeros(3, 4, dtype=torch.float64)
    for step in range(1, 8):
        features = torch.randn(9, 4, dtype=torch.float64)
        batch = torch.stack([features[labels == label].mean(0) for label in range(3)]) - features.mean(0)
        share = 2 / (step + 1)
        running = share * batch / batch.norm() + (1 - share) * running
        means.update(features, labels)
    torch.testing.assert_close(means.running, running)


def test_share_of_a_batch_never_falls_below_one_in_ten_thousand():
    means = RunningClassMeans(4, 3).double()
    means.update(torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3)
    means.global_mean.steps.fill_(10**6)
    before = means.running.clone()
    features = torch.randn(9, 4, dtype=torch.float64)
    means.update(features, torch.arange(9) % 3)
    batch = torch.stack([features[label::3].mean(0) for label in range(3)]) - features.mean(0)
    torch.testing.assert_close(means.running, 1e-4 * batch / batch.norm() + (1 - 1e-4) * before)


def test_gradient_reaches_the_batch_scaled_by_its_share():
    means = RunningClassMeans(4, 3).double()
    labels = torch.arange(9) % 3
    means.update(torch.randn(9, 4, dtype=torch.float64), labels)
    state = {key: value.clone() for key, value in means.state_dict().items()}
    features = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)

    def updated(features):
        means.load_state_dict(state)
        return tuple(means.update(features, labels))

    assert torch.autograd.gradcheck(updated, (features,))
    assert not means.running.requires_grad


def test_float64_means_are_right_to_float64():
    means, running = RunningClassMeans(4, 3).double(), torch.zeros(3, 4, dtype=torch.float64)
    for step in range(1, 40):
        features = torch.randn(9, 4, dtype=torch.float64)
        batch = torch.stack([features[label::3].mean(0) for label in range(3)]) - features.mean(0)
        running = 2 / (step + 1) * batch / batch.norm() + (1 - 2 / (step + 1)) * running
        means.update(features, torch.arange(9) % 3)
    torch.testing.assert_close(means.running, running, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", LABEL_TYPES)
def test_labels_of_every_integer_type(dtype):
    means, expected = RunningClassMeans(4, 3), RunningClassMeans(4, 3)
    features = torch.randn(9, 4)
    expected.update(features, torch.arange(9) % 3)
    means.update(features, (torch.arange(9) % 3).to(dtype))
    assert torch.equal(means.running, expected.running)


@pytest.mark.parametrize("size", [1e-12, 1e12, 1e17])
def test_a_class_without_a_mean_of_its_own_yet_stays_there_whatever_the_size_of_the_features(size):
    means = RunningClassMeans(4, 3)
    means.update(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    updated = means.update(size * torch.randn(6, 4), torch.tensor([1, 1, 1, 2, 2, 2])).centered_class_means
    assert torch.equal(updated[0], torch.zeros(4))
    assert torch.isfinite(means.running).all()
    later = means.update(size * torch.randn(6, 4), torch.tensor([0, 0, 0, 2, 2, 2])).centered_class_means
    assert torch.isfinite(later).all()
    assert later[1].norm() > 0.1


def test_features_that_the_state_cannot_hold_are_refused():
    means = RunningClassMeans(4, 3)
    with pytest.raises(ValueError, match="must not exceed"):
        means.update(1e50 * torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3)
    assert torch.equal(means.global_mean.value, torch.zeros(4))


def test_global_mean_moves_like_batch_norm():
    mean, norm = RunningMean(4), torch.nn.BatchNorm1d(4, momentum=0.1)
    first = torch.randn(6, 4)
    known = torch.tensor(True)
    mean.update(first.mean(0), known)
    torch.testing.assert_close(mean.value, first.mean(0))
    norm.running_mean.copy_(first.mean(0))
    for _ in range(3):
        batch = torch.randn(6, 4)
        mean.update(batch.mean(0), known)
        norm(batch)
    torch.testing.assert_close(mean.value, norm.running_mean)


def test_bad_batches_leave_the_state_alone():
    means = RunningClassMeans(4, 3)
    means.update(torch.randn(6, 4), torch.arange(6) % 3)
    before = {key: value.clone() for key, value in means.state_dict().items()}
    for features, labels in [(torch.full((6, 4), torch.nan), torch.arange(6) % 3), (torch.randn(6, 4), torch.arange(6))]:
        with pytest.raises(ValueError, match="must be"):
            means.update(features, labels)
    assert all(torch.equal(before[key], value) for key, value in means.state_dict().items())


def update_present(means, features, labels):
    means.take_in_present(center_batch(features, labels, check_values=means.check_values))


def growing_batches(num_steps, num_classes, batch_size):
    generator = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        features = 3 + torch.randn(batch_size, 5, generator=generator, dtype=torch.float64)
        if step in (0, 7):  # features that are all the same
            features = torch.ones_like(features)
        # More and more classes, so that some are seen for the first time late.
        yield features, torch.randint(0, min(num_classes, 3 + 2 * step), (batch_size,), generator=generator)


@pytest.mark.parametrize(("num_classes", "batch_size"), [(40, 7), (6, 50), (300, 64), (9, 1)])
def test_they_are_those_of_all_classes(num_classes, batch_size):
    every, sparse = RunningClassMeans(5, num_classes).double(), RunningClassMeans(5, num_classes).double()
    for step, batch in enumerate(growing_batches(40, num_classes, batch_size)):
        every.update(*batch)
        update_present(sparse, *batch)
        torch.testing.assert_close(sparse.factor * sparse.running, every.running, rtol=1e-10, atol=1e-13)
        assert torch.equal(sparse.seen, every.seen)
        assert int(sparse.num_seen) == int(every.seen.sum())
        torch.testing.assert_close(sparse.squares, every.running.square().sum().view(1))
        torch.testing.assert_close(sparse.global_mean.value, every.global_mean.value)
        if step % 9 == 0:
            torch.testing.assert_close(sparse.value(), every.running)
            assert float(sparse.factor) == 1


def test_only_the_rows_of_the_batch_are_written_to():
    means = RunningClassMeans(5, 100)
    for batch in growing_batches(5, 100, 20):
        update_present(means, batch[0].float(), batch[1])
    before = means.running.clone()
    update_present(means, torch.randn(3, 5), torch.tensor([2, 50, 2]))
    changed = (means.running != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [2, 50]


def test_the_common_factor_stays_in_range():
    means = RunningClassMeans(3, 50)
    for features, labels in ((torch.randn(10, 3), torch.randint(0, 50, (10,))) for _ in range(100)):
        update_present(means, features, labels)
    assert 1e-3 < float(means.factor) < 1e3


def test_what_is_not_finite_changes_nothing_where_nobody_looks():
    means = RunningClassMeans(5, 9, check_values=False)
    update_present(means, torch.randn(4, 5), torch.arange(4))
    before = copy.deepcopy(means.state_dict())
    update_present(means, torch.full((4, 5), torch.nan), torch.arange(4))
    for key, value in means.state_dict().items():
        assert "steps" in key or torch.equal(value, before[key]), key
