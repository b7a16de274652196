"""Means that change only the classes of a batch are those of the formula for all classes."""

import copy

import pytest
import torch

from guided_collapse import RunningClassMeans
from guided_collapse.heads.means.sparse_means import SparseClassMeans


def batches(num_steps, num_classes, batch_size):
    generator = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        features = 3 + torch.randn(batch_size, 5, generator=generator, dtype=torch.float64)
        if step in (0, 7):  # features that are all the same
            features = torch.ones_like(features)
        # More and more classes, so that some are seen for the first time late.
        yield features, torch.randint(0, min(num_classes, 3 + 2 * step), (batch_size,), generator=generator)


@pytest.mark.parametrize(("num_classes", "batch_size"), [(40, 7), (6, 50), (300, 64), (9, 1)])
def test_they_are_those_of_all_classes(num_classes, batch_size):
    every, sparse = RunningClassMeans(5, num_classes).double(), SparseClassMeans(5, num_classes).double()
    for step, batch in enumerate(batches(40, num_classes, batch_size)):
        expected, found = every.update(*batch), sparse.update(*batch)
        torch.testing.assert_close(found.centered_class_means, expected.centered_class_means, rtol=1e-10, atol=1e-13)
        assert torch.equal(sparse.seen, every.seen)
        assert int(sparse.num_seen) == int(every.seen.sum())
        torch.testing.assert_close(sparse.squares, every.running.square().sum().view(1))
        torch.testing.assert_close(sparse.global_mean.value, every.global_mean.value)
        if step % 9 == 0:
            sparse.fold()
            torch.testing.assert_close(sparse.running, every.running)


def test_only_the_rows_of_the_batch_are_written_to():
    means = SparseClassMeans(5, 100)
    for batch in batches(5, 100, 20):
        means.update(batch[0].float(), batch[1])
    before = means.running.clone()
    means.update(torch.randn(3, 5), torch.tensor([2, 50, 2]))
    changed = (means.running != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [2, 50]


def test_the_common_factor_stays_in_range():
    means = SparseClassMeans(3, 50)
    for features, labels in ((torch.randn(10, 3), torch.randint(0, 50, (10,))) for _ in range(100)):
        means.update(features, labels)
    assert 1e-3 < float(means.scale) < 1e3


def test_what_is_not_finite_changes_nothing_where_nobody_looks():
    means = SparseClassMeans(5, 9, check_values=False)
    means.update(torch.randn(4, 5), torch.arange(4))
    before = copy.deepcopy(means.state_dict())
    means.update(torch.full((4, 5), torch.nan), torch.arange(4))
    for key, value in means.state_dict().items():
        assert "steps" in key or torch.equal(value, before[key]), key


def test_the_state_of_running_means_can_be_loaded():
    every, sparse = RunningClassMeans(5, 40), SparseClassMeans(5, 40)
    for features, labels in batches(5, 40, 7):
        every.update(features.float(), labels)
    sparse.load_state_dict(every.state_dict())
    batch = torch.randn(7, 5), torch.arange(7) * 5
    torch.testing.assert_close(sparse.update(*batch).centered_class_means, every.update(*batch).centered_class_means)
