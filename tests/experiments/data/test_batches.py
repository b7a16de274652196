import pytest
import torch

from guided_collapse.experiments.data.batches import ProcessShare, ShuffledBatchSampler, batches
from guided_collapse.experiments.data.split import Split
from guided_collapse.sampling import StratifiedBatchSampler
from tests.experiments.data.test_split import Streamed


def made_up(num=23):
    return torch.randint(0, 256, (num, 3, 5, 4), dtype=torch.uint8), torch.arange(num) % 3


class Broken(Streamed):
    def __getitem__(self, index):
        raise ValueError(f"image {index} is not readable")


def same_batches(kept, streamed, *, num_workers):
    """Whether two splits of at least 18 images give the same batches."""
    order = [[5, 0, 17], [3], [16, 2]]
    expected = batches(kept, order, device="cpu")
    found = batches(streamed, order, device="cpu", num_workers=num_workers)
    return all(torch.equal(*pair) for both in zip(expected, found, strict=True) for pair in zip(*both, strict=True))


@pytest.mark.parametrize(("streamed", "num_workers"), [(False, 0), (True, 0), (True, 2)])
def test_batches_follow_the_sampler(streamed, num_workers):
    images, labels = made_up()
    before, global_state = images.clone(), torch.get_rng_state()
    split = Split(Streamed(images) if streamed else images, labels)
    sampler = StratifiedBatchSampler(labels, 6, seed=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        found = list(batches(split, sampler, device="cpu", num_workers=num_workers))
        for batch, indices in zip(found, expected, strict=True):
            assert batch.inputs.dtype == torch.uint8
            assert torch.equal(batch.inputs, images[indices])
            assert torch.equal(batch.labels, labels[indices])
            batch.inputs.zero_()
            assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_a_worker_comes_through(num_workers):
    images, labels = made_up()
    with pytest.raises(ValueError, match="image 2 is not readable"):
        list(batches(Split(Broken(images), labels), [[2]], device="cpu", num_workers=num_workers))


@pytest.mark.parametrize("sampler", [ShuffledBatchSampler(23, 6, seed=1), StratifiedBatchSampler(torch.arange(23) % 3, 6, seed=1)])
def test_processes_share_every_batch(sampler):
    sampler.set_epoch(2)
    whole = list(ProcessShare().of_batches(sampler))
    assert sorted(index for batch in whole for index in batch) == list(range(23))
    assert sorted(map(len, whole)) == [5, 6, 6, 6]
    halves = [list(ProcessShare(rank, 2).of_batches(sampler)) for rank in (0, 1)]
    for batch, *parts in zip(whole, *halves, strict=True):
        assert parts == [batch[0::2], batch[1::2]]
    with pytest.raises(ValueError, match=r"got batches of 5 for 6 processes\. Raise batch_size"):
        next(ProcessShare(0, 6).of_batches(sampler))
    assert ProcessShare(1, 2).in_order(7, batch_size=2) == [[1, 3], [5]]


def test_shuffled_batches_follow_seed_and_epoch():
    def drawn(seed, epoch):
        sampler = ShuffledBatchSampler(23, 6, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(1, 3) != drawn(2, 3)
    # Part of what a result means: a change here makes old and new results incomparable.
    assert drawn(0, 1)[0] == [15, 19, 18, 16, 14, 1]
