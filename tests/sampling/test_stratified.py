import hashlib
import itertools
import json
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import StratifiedBatchSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def labels_of(counts, seed=0):
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels)


def check_epoch(labels, batches):
    """Every sample once, and every class within one sample of its share of every batch."""
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(len(labels)))
    for batch in batches:
        counts = np.bincount(labels[batch], minlength=labels.max() + 1)
        # |count - n B/N| < 1, in integers to avoid rounding.
        assert np.abs(counts * len(labels) - len(batch) * np.bincount(labels)).max() < len(labels)


@settings(max_examples=150)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(sum), batch_size=st.integers(1, 70), seed=st.integers(0, 5)
)
def test_every_batch_has_every_class_in_proportion(counts, batch_size, seed):
    labels = labels_of(counts)
    sampler = StratifiedBatchSampler(labels, batch_size, seed=seed)
    batches = list(sampler)
    check_epoch(labels, batches)
    sizes = [len(batch) for batch in batches]
    assert len(sampler) == len(batches) == -(-len(labels) // batch_size)
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


def sizes_to_sweep():
    """8 to 60 samples of 2 to 6 classes, balanced or long-tailed, for 2 to 5 processes; a batch has at least one per class."""
    generator = np.random.default_rng(0)
    for num_samples, num_classes, replicas in itertools.product(range(8, 61), range(2, 7), range(2, 6)):
        shares = generator.dirichlet(np.full(num_classes, generator.choice([0.5, 2.0, 100.0])))
        labels = generator.choice(num_classes, num_samples, p=shares)
        batch_size = replicas * int(generator.integers(-(-num_classes // replicas), num_samples // replicas + 2))
        if num_samples // replicas >= -(-num_samples // batch_size):  # otherwise the sampler raises, see test_refusals
            yield labels, batch_size, replicas


def test_every_class_has_its_share_of_every_global_batch_for_any_number_of_processes():
    num_checked = 0
    for labels, batch_size, replicas in sizes_to_sweep():
        samplers = [StratifiedBatchSampler(labels, batch_size, num_replicas=replicas, rank=rank) for rank in range(replicas)]
        parts = list(zip(*samplers, strict=True))
        check_epoch(labels, [list(itertools.chain(*part)) for part in parts])
        sizes = np.array([[len(own) for own in part] for part in parts])
        assert sizes.min() >= 1
        assert (np.ptp(sizes, axis=1) > 0).sum() <= (len(labels) % replicas > 0)
        assert np.ptp(sizes, axis=1).max() <= 1
        assert np.ptp(sizes.sum(1)) <= replicas
        assert sizes.sum(1).max() <= batch_size
        for part in parts:
            per_class = np.array([np.bincount(labels[own], minlength=6) for own in part])
            assert np.ptp(per_class, axis=0).max() <= 1
        num_checked += 1
    assert num_checked > 900


@pytest.mark.parametrize("counts", [[33, 26, 7, 33], [9, 2, 9, 7]])
def test_the_left_over_sample_is_chosen_so_that_every_class_keeps_its_share(counts):
    labels = labels_of(counts)
    samplers = [StratifiedBatchSampler(labels, 6, num_replicas=2, rank=rank) for rank in range(2)]
    for epoch in range(60):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        batches = [first + second for first, second in zip(*samplers, strict=True)]
        check_epoch(labels, batches)
        assert sum(len(batch) % 2 for batch in batches) == 1


@pytest.mark.parametrize(
    ("counts", "batch_size", "replicas", "seed", "epoch", "members", "checksum"),
    [
        ([40, 30, 50], 24, 1, 0, 0, "89ecd71cb569bfec", "169e510f50271102"),
        ([100] * 10, 13, 1, 7, 3, "e854976ec123cbe2", "f0c2b029de7b95bf"),
        ([500, 3, 1, 60, 0, 17], 32, 1, 2, 11, "512c4d0e3e0d1cd7", "6ac547bb558ab912"),
        ([7, 1], 8, 1, 0, 5, "073c6b080b40ec0a", "b01cd4d8473faca8"),
        ([40, 30, 50], 24, 2, 0, 1, "58cfd35cd2b726f2", "c0f4333cd04530b4"),
        ([33, 17, 10, 3], 12, 3, 4, 2, "2e5bd1715196f382", "778fd36cd1c2defb"),
        ([100] * 10, 52, 4, 1, 1, "3f76f6f85443fcd1", "21bd86915c7fc156"),
    ],
)
def test_the_order_that_published_results_depend_on(counts, batch_size, replicas, seed, epoch, members, checksum):
    orders = []
    for rank in range(replicas):
        sampler = StratifiedBatchSampler(labels_of(counts), batch_size, num_replicas=replicas, rank=rank, seed=seed)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    # Runs sort the same batches by class.
    assert checksum_of([[sorted(batch) for batch in batches] for batches in orders]) == members
    assert checksum_of(orders) == checksum


def checksum_of(orders):
    return hashlib.sha256(json.dumps(orders).encode()).hexdigest()[:16]


def test_neighbors_in_a_batch_differ_in_class_as_often_as_in_a_plain_shuffle():
    # torchvision's MixUp and CutMix mix a batch with itself, rolled by one.
    labels = labels_of([100] * 10)
    for replicas in (1, 2):
        shares = []
        for rank in range(replicas):
            sampler = StratifiedBatchSampler(labels, 100 * replicas, num_replicas=replicas, rank=rank)
            for epoch in range(5):
                sampler.set_epoch(epoch)
                shares += [np.mean(labels[batch] != labels[np.roll(batch, 1)]) for batch in sampler]
        assert 0.88 < np.mean(shares) < 0.94


@pytest.fixture
def second_of_two_processes():
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def test_sharding_the_batches_again_is_refused(second_of_two_processes):
    for replicas in (1, 2):
        sampler = StratifiedBatchSampler(labels_of([6, 10]), 4, num_replicas=replicas, rank=0)
        with pytest.raises(ValueError, match=r"splits its batches between processes itself.*2 processes.*only model and optimizer"):
            _ = sampler.drop_last


def test_attributes_that_trainers_look_for():
    sampler = StratifiedBatchSampler(labels_of([6, 10]), 4)
    assert sampler.sampler is sampler
    assert sampler.drop_last is False


def test_one_process_and_several_see_the_same_global_batches():
    labels = labels_of([40, 30, 50])
    alone = [sorted(batch) for batch in StratifiedBatchSampler(labels, 24)]
    halves = [StratifiedBatchSampler(labels, 24, num_replicas=2, rank=rank) for rank in range(2)]
    assert [sorted(first + second) for first, second in zip(*halves, strict=True)] == alone


def test_in_a_data_loader():
    labels = torch.arange(60) % 4
    loader = DataLoader(TensorDataset(torch.arange(60), labels), batch_sampler=StratifiedBatchSampler(labels, 16))
    seen = torch.cat([samples for samples, _ in loader])
    assert torch.equal(seen.sort().values, torch.arange(60))
    assert len(loader) == 4


@pytest.mark.parametrize("kind", [list, torch.tensor, np.array])
def test_labels_of_any_kind(kind):
    labels = [0, 1, 1, 2, 0, 1]
    assert list(StratifiedBatchSampler(kind(labels), 3)) == list(StratifiedBatchSampler(labels, 3))


def test_world_size_and_rank_come_from_torch_distributed_unless_given(second_of_two_processes):
    labels = labels_of([6, 10])
    sampler = StratifiedBatchSampler(labels, 4)
    assert (sampler.num_replicas, sampler.rank) == (2, 1)
    given = StratifiedBatchSampler(labels, 6, num_replicas=3, rank=0)
    assert (given.num_replicas, given.rank) == (3, 0)


@pytest.mark.parametrize(
    ("labels", "options", "error", "message"),
    [
        ([0, 1], {"batch_size": 0}, ValueError, "batch_size must be at least 1; got 0"),
        ([0, 1] * 2, {"batch_size": 3, "num_replicas": 2}, ValueError, "multiple of num_replicas.*batch_size=3, num_replicas=2"),
        ([0, 1], {"batch_size": 2, "num_replicas": 2, "rank": 2}, ValueError, "rank=2, num_replicas=2"),
        ([], {"batch_size": 2}, ValueError, r"got shape \(0,\)"),
        ([[0, 1]], {"batch_size": 2}, ValueError, r"got shape \(1, 2\)"),
        ([0.5, 1.0], {"batch_size": 2}, TypeError, "integers; got float64"),
        ([0, -1], {"batch_size": 2}, ValueError, "must not be negative; got -1"),
        ([0, 1, 0], {"batch_size": 2, "num_replicas": 2}, ValueError, "got 3 samples for 2 batches over num_replicas=2"),
        ([0, 1], {"batch_size": 2, "seed": -1}, ValueError, "seed must be at least 0; got -1"),
        ([0, 1], {"batch_size": 2.0}, TypeError, "batch_size must be an integer; got 2.0"),
        ([0, 1], {"batch_size": 2, "num_replicas": "1"}, TypeError, "num_replicas must be an integer; got '1'"),
    ],
)
def test_refusals(labels, options, error, message):
    with pytest.raises(error, match=message):
        StratifiedBatchSampler(labels, **options)


def test_labels_with_large_gaps_take_little_memory():
    labels = np.array([5, 10**12, 7] * 20)
    tracemalloc.start()
    batches = list(StratifiedBatchSampler(labels, 12))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6
    assert all(sorted(np.unique(labels[batch], return_counts=True)[1]) == [4, 4, 4] for batch in batches)


def test_epochs_are_integers_of_any_kind():
    sampler, orders = StratifiedBatchSampler([0, 1, 0, 1], 2), []
    for epoch in (3, np.int64(3), np.uint8(3), torch.tensor(3)):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert all(order == orders[0] for order in orders)
    with pytest.raises(TypeError, match=r"epoch must be an integer; got 1\.0"):
        sampler.set_epoch(1.0)
    with pytest.raises(ValueError, match="epoch must be at least 0; got -1"):
        sampler.set_epoch(-1)
