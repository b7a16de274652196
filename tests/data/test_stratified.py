import itertools
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import StratifiedBatchSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def labels_of(counts, seed=0):
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels)


def check_epoch(labels, batches, *, slack=0):
    """Every sample once, even sizes, and every class in every batch within one sample of its share."""
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(len(labels)))
    for batch in batches:
        counts = np.bincount(labels[batch], minlength=labels.max() + 1)
        share = len(batch) * np.bincount(labels) / len(labels)
        assert np.abs(counts - share).max() <= 1 + slack + 1e-9


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


@settings(max_examples=100)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    local_size=st.integers(1, 20),
    replicas=st.integers(2, 5),
)
def test_several_processes_share_a_stratified_global_batch(counts, local_size, replicas):
    labels = labels_of(counts)
    batch_size = local_size * replicas
    if len(labels) // replicas < -(-len(labels) // batch_size):
        with pytest.raises(ValueError, match="every process needs a sample in every batch"):
            StratifiedBatchSampler(labels, batch_size, num_replicas=replicas, rank=0)
        return
    local = [list(StratifiedBatchSampler(labels, batch_size, num_replicas=replicas, rank=rank)) for rank in range(replicas)]
    assert len({len(batches) for batches in local}) == 1
    together = [list(itertools.chain(*parts)) for parts in zip(*local, strict=True)]
    left_over = len(labels) % replicas
    check_epoch(labels, together, slack=1 if left_over else 0)
    uneven = 0
    for parts in zip(*local, strict=True):
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1
        assert sum(sizes) <= batch_size
        uneven += max(sizes) != min(sizes)
        per_class = np.array([np.bincount(labels[part], minlength=len(counts)) for part in parts])
        assert (per_class.max(0) - per_class.min(0)).max() <= 1
    assert uneven <= (1 if left_over else 0)


def test_one_process_and_several_see_the_same_global_batches():
    labels = labels_of([40, 30, 50])
    alone = [sorted(batch) for batch in StratifiedBatchSampler(labels, 24)]
    halves = [StratifiedBatchSampler(labels, 24, num_replicas=2, rank=rank) for rank in range(2)]
    assert [sorted(first + second) for first, second in zip(*halves, strict=True)] == alone


def test_every_class_is_in_every_batch_when_there_is_room():
    labels = labels_of([100] * 10)
    for batch in StratifiedBatchSampler(labels, 13):
        assert len(np.unique(labels[batch])) == 10


def test_order_depends_on_seed_and_epoch_alone():
    labels = labels_of([20, 30, 10])

    def epoch(seed, number):
        sampler = StratifiedBatchSampler(labels, 8, seed=seed)
        sampler.set_epoch(number)
        return list(sampler)

    assert epoch(0, 3) == epoch(0, 3)
    assert epoch(0, 3) != epoch(0, 4)
    assert epoch(0, 3) != epoch(1, 3)
    assert epoch(0, 1) != epoch(1, 0)


def test_samples_meet_different_ones_from_epoch_to_epoch():
    labels = labels_of([50, 50])
    sampler = StratifiedBatchSampler(labels, 10)
    mates = []
    for number in range(2):
        sampler.set_epoch(number)
        mates.append({sample: frozenset(batch) for batch in sampler for sample in batch})
    assert sum(mates[0][sample] == mates[1][sample] for sample in range(100)) < 5


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


def test_world_size_and_rank_come_from_torch_distributed(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        sampler = StratifiedBatchSampler([0, 1, 0, 1], 2)
        assert (sampler.num_replicas, sampler.rank) == (1, 0)
    finally:
        torch.distributed.destroy_process_group()
    assert os.environ.get("RANK") is None


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 1], {"batch_size": 0}, "at least 1.*batch_size=0"),
        (
            [0, 1, 1, 0],
            {"batch_size": 3, "num_replicas": 2, "rank": 0},
            "multiple of num_replicas; got batch_size=3, num_replicas=2",
        ),
        ([0, 1], {"batch_size": 2, "num_replicas": 2, "rank": 2}, "rank=2, num_replicas=2"),
        ([], {"batch_size": 2}, r"got shape \(0,\)"),
        ([[0, 1]], {"batch_size": 2}, r"got shape \(1, 2\)"),
        ([0.5, 1.0], {"batch_size": 2}, "integers.*float64"),
        ([0, -1], {"batch_size": 2}, "must not be negative; got -1"),
        ([0, 1, 0], {"batch_size": 2, "num_replicas": 2, "rank": 0}, "got 3 samples for 2 batches over num_replicas=2"),
    ],
)
def test_refusals(labels, options, message):
    with pytest.raises(ValueError, match=message):
        StratifiedBatchSampler(labels, **options)
