import copy

import numpy as np
import pytest
import torch

from guided_collapse import RunningClassMeans
from guided_collapse.heads.batch import Batch
from guided_collapse.heads.class_means import RunningMean
from tests.heads.cases import assert_same_state, mixed


class SlowRunningMeans:
    """The definition of the running means in numpy, one sample and one class at a time, with soft labels."""

    def __init__(self, feature_dim, num_classes):
        self.running, self.seen, self.steps = np.zeros((num_classes, feature_dim)), set(), 0

    def update(self, features, shares):
        batch, sizes, present = np.zeros_like(self.running), [], set()
        middle = sum(features) / len(features)
        for label in range(len(self.running)):
            count = sum(row[label] for row in shares)
            if count > 0:
                present.add(label)
                batch[label] = sum(row[label] * sample for row, sample in zip(shares, features, strict=True)) / count - middle
                sizes.append(np.sum(batch[label] ** 2))
        known = [np.sum(self.running[label] ** 2) for label in self.seen]
        for label in self.seen - present:
            batch[label] = self.running[label] * np.sqrt(np.mean(sizes) / np.mean(known))
        batch /= np.sqrt(np.sum(batch**2))
        self.steps += 1
        share = 2 / (self.steps + 1)
        for label in range(len(batch)):
            is_new = label in present and label not in self.seen
            before = batch[label] if is_new else self.running[label]
            self.running[label] = batch[label] if self.steps == 1 else share * batch[label] + (1 - share) * before
        self.seen |= present


@pytest.mark.parametrize("soft", [False, True], ids=["class indices", "soft labels"])
def test_against_the_definition(soft):
    generator = torch.Generator().manual_seed(0)
    means, slow = RunningClassMeans(4, 9).double(), SlowRunningMeans(4, 9)
    for step in range(12):
        # A growing number of classes, rarely all of them.
        labels = torch.randint(0, min(9, 3 + step), (6,), generator=generator)
        features = torch.randn(6, 4, generator=generator, dtype=torch.float64) + labels[:, None]
        share = torch.rand(6, 1, generator=generator, dtype=torch.float64) if soft else 1.0
        features, shares = mixed(features, labels, 9, share)
        slow.update(features.numpy(), shares.numpy())
        updated = means.update(features, shares if soft else labels)
        torch.testing.assert_close(updated.centered_class_means, torch.from_numpy(slow.running), rtol=0, atol=1e-11)
        assert torch.equal(means.running, updated.centered_class_means)
        torch.testing.assert_close(updated.global_mean, features.mean(0))
        assert set(means.seen.nonzero().flatten().tolist()) == slow.seen
    assert int(means.steps) == 12


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5])
def test_class_means_are_accurate_far_from_zero(offset):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (20_000,), generator=generator)
    classes = torch.randn(5, 3, generator=generator)
    features = offset + classes[labels] + torch.randn(20_000, 3, generator=generator)
    values = features.numpy().astype(np.float64)
    means = np.stack([values[labels.numpy() == c].mean(axis=0) for c in range(5)]) - values.mean(axis=0)
    found = RunningClassMeans(3, 5).update(features, labels).centered_class_means
    # Differences between features are exact in float32, and the sums over a class have some 4000 terms of their size.
    torch.testing.assert_close(found.double(), torch.from_numpy(means / np.linalg.norm(means)), rtol=0, atol=2e-6)


def test_the_weight_of_a_batch_never_falls_below_one_in_ten_thousand():
    means = RunningClassMeans(4, 3).double()
    means.update(torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3)
    means.global_mean.steps.fill_(10**6)
    before = means.running.clone()
    features = torch.randn(9, 4, dtype=torch.float64)
    means.update(features, torch.arange(9) % 3)
    batch = torch.stack([features[label::3].mean(0) for label in range(3)]) - features.mean(0)
    torch.testing.assert_close(means.running, 1e-4 * batch / batch.norm() + (1 - 1e-4) * before)


def test_the_gradient_is_scaled_by_the_weight_of_the_batch():
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


def test_with_every_class_in_every_batch_it_is_the_papers_formula():
    means, running = RunningClassMeans(4, 3).double(), torch.zeros(3, 4, dtype=torch.float64)
    for step in range(1, 40):
        features = torch.randn(9, 4, dtype=torch.float64)
        batch = torch.stack([features[label::3].mean(0) for label in range(3)]) - features.mean(0)
        running = 2 / (step + 1) * batch / batch.norm() + (1 - 2 / (step + 1)) * running
        means.update(features, torch.arange(9) % 3)
    torch.testing.assert_close(means.running, running, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1e-12, 1e12, 1e17])
def test_classes_never_seen_stay_at_zero_for_features_of_any_size(size):
    means = RunningClassMeans(4, 3)
    means.update(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    updated = means.update(size * torch.randn(6, 4), torch.tensor([1, 1, 1, 2, 2, 2])).centered_class_means
    assert torch.equal(updated[0], torch.zeros(4))
    assert torch.isfinite(means.running).all()
    later = means.update(size * torch.randn(6, 4), torch.tensor([0, 0, 0, 2, 2, 2])).centered_class_means
    assert torch.isfinite(later).all()
    assert later[1].norm() > 0.1


def test_global_mean_moves_like_batch_norm():
    mean, norm = RunningMean(4), torch.nn.BatchNorm1d(4, momentum=0.1)
    first = torch.randn(6, 4)
    mean.update(first.mean(0), torch.tensor(True))
    torch.testing.assert_close(mean.value, first.mean(0))
    norm.running_mean.copy_(first.mean(0))
    for _ in range(3):
        batch = torch.randn(6, 4)
        mean.update(batch.mean(0), torch.tensor(True))
        norm(batch)
    torch.testing.assert_close(mean.value, norm.running_mean)


def test_invalid_batches_do_not_change_the_state():
    means = RunningClassMeans(4, 3)
    features, labels = torch.randn(6, 4), torch.arange(6) % 3
    means.update(features, labels)
    before = copy.deepcopy(means)
    bad = [
        (features * torch.nan, labels, "must be finite"),
        (features, torch.arange(6), "must be from 0"),
        (1e50 * features.double(), labels, "must not exceed"),
    ]
    for features, labels, message in bad:
        with pytest.raises(ValueError, match=message):
            means.update(features, labels)
    assert_same_state(means, before)


def update_present(means, features, labels):
    means.add_batch(Batch(features, labels, is_clean=means.check_values is None), only_state=True)


def growing_batches(num_steps, num_classes, batch_size):
    generator = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        features = 3 + torch.randn(batch_size, 5, generator=generator, dtype=torch.float64)
        if step in (0, 7):  # all features equal
            features = torch.ones_like(features)
        # A growing number of classes, so that some first appear late.
        yield features, torch.randint(0, min(num_classes, 3 + 2 * step), (batch_size,), generator=generator)


@pytest.mark.parametrize(("num_classes", "batch_size"), [(40, 7), (6, 50), (300, 64), (9, 1)])
def test_updating_present_classes_equals_updating_all_classes(num_classes, batch_size):
    every, sparse = RunningClassMeans(5, num_classes).double(), RunningClassMeans(5, num_classes).double()
    for step, batch in enumerate(growing_batches(40, num_classes, batch_size)):
        every.update(*batch)
        update_present(sparse, *batch)
        torch.testing.assert_close(sparse.factor * sparse.running, every.running, rtol=1e-10, atol=1e-13)
        assert torch.equal(sparse.seen, every.seen)
        torch.testing.assert_close(sparse.row_squares, every.running.square().sum(1))
        torch.testing.assert_close(sparse.global_mean.value, every.global_mean.value)
        if step % 9 == 0:
            torch.testing.assert_close(sparse.value(), every.running)
            assert float(sparse.factor) == 1


@pytest.mark.parametrize("update", [RunningClassMeans.update, update_present], ids=["all classes", "present classes"])
@pytest.mark.parametrize("check_values", [True, False])
def test_equal_features_do_not_move_the_class_means(update, check_values):
    means = RunningClassMeans(5, 40, check_values=check_values)
    update(means, torch.randn(30, 5), torch.arange(30))
    before = means.value().clone(), means.row_squares.clone(), means.seen.clone()
    update(means, torch.randn(5).expand(20, 5), torch.arange(20, 40))
    for found, expected in zip((means.value(), means.row_squares, means.seen), before, strict=True):
        torch.testing.assert_close(found, expected)
    assert int(means.steps) == 2


def test_only_rows_of_present_classes_are_written():
    means = RunningClassMeans(5, 100)
    for batch in growing_batches(5, 100, 20):
        update_present(means, batch[0].float(), batch[1])
    before = means.running.clone()
    update_present(means, torch.randn(3, 5), torch.tensor([2, 50, 2]))
    changed = (means.running != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [2, 50]


def test_nonfinite_features_change_nothing_without_checks():
    means = RunningClassMeans(5, 9, check_values=False)
    update_present(means, torch.randn(4, 5), torch.arange(4))
    before = copy.deepcopy(means.state_dict())
    update_present(means, torch.full((4, 5), torch.nan), torch.arange(4))
    for key, value in means.state_dict().items():
        assert "steps" in key or torch.equal(value, before[key]), key
