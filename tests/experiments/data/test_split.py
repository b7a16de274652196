import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from guided_collapse.experiments.data.split import ImageData, Split, few_of_each, hold_out, long_tailed


class Streamed(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


def images(num=6):
    return torch.randint(0, 256, (num, 3, 4, 4), dtype=torch.uint8)


def test_a_split_knows_its_size_and_keeps_images_and_labels_together():
    pixels, labels, indices = images(), torch.arange(6), torch.tensor([4, 0, 3])
    for split in (Split(pixels, labels), Split(Streamed(pixels), labels)):
        assert len(split) == 6
        assert split.image_shape == (3, 4, 4)
        part = split.take(indices)
        assert part.labels.tolist() == [4, 0, 3]
        assert isinstance(part.images, torch.Tensor) == isinstance(split.images, torch.Tensor)
        for place, index in enumerate(indices):
            assert torch.equal(part.images[place], pixels[index])


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (images(), torch.arange(5), "each with a label"),
        (images(0), torch.arange(0), "there must be samples"),
        (images(), torch.arange(6) - 1, "must not be negative; got -1"),
    ],
)
def test_a_split_refuses_what_does_not_belong_together(pixels, labels, message):
    with pytest.raises(ValueError, match=message):
        Split(pixels, labels)


def test_data_knows_its_classes_and_refuses_misfits():
    split = Split(images(), torch.arange(6) % 3)
    data = ImageData("made up", split, split, ("a", "b", "c"))
    assert data.num_classes == 3
    assert data.image_shape == (3, 4, 4)
    with pytest.raises(ValueError, match="less than its number of classes, 2; got 2"):
        ImageData("made up", split, split, ("a", "b"))


@settings(max_examples=100)
@given(counts=st.lists(st.integers(2, 40), min_size=1, max_size=8), share=st.floats(0, 1), seed=st.none() | st.integers(0, 3))
def test_every_class_has_its_share_in_both_parts(counts, share, seed):
    labels = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)))
    least, most = len(counts), sum(counts) - len(counts)
    num_test = least + round(share * (most - least))
    parts = hold_out(labels, num_test, seed=seed)
    assert sorted(parts.train.tolist() + parts.test.tolist()) == list(range(len(labels)))
    assert parts.train.tolist() == sorted(parts.train.tolist())
    assert len(parts.test) == num_test
    held = labels[parts.test].bincount(minlength=len(counts))
    for count, found in zip(counts, held.tolist(), strict=True):
        assert 1 <= found <= count - 1
    if min(counts) * num_test >= sum(counts) and all(count * num_test / sum(counts) <= count - 1 for count in counts):
        # No class is at a limit, so each is within one of its proportional share.
        assert max(abs(found - count * num_test / sum(counts)) for count, found in zip(counts, held.tolist(), strict=True)) < 1


def test_the_seed_decides():
    labels = torch.arange(100) % 2
    first = hold_out(labels, 20, seed=0).test
    assert torch.equal(first, hold_out(labels, 20, seed=0).test)
    assert not torch.equal(first, hold_out(labels, 20, seed=1).test)
    even = hold_out(torch.zeros(10, dtype=torch.int64), 2, seed=None).test
    assert even.tolist() == [2, 7]


@pytest.mark.parametrize(("labels", "num_test"), [([0, 0, 1], 1), ([0, 0, 1, 1], 1), ([0, 0, 1, 1], 3)])
def test_parts_that_would_lack_a_class(labels, num_test):
    with pytest.raises(ValueError, match="both parts need a sample of every class"):
        hold_out(torch.tensor(labels), num_test, seed=0)


def balanced(num_classes, num_per_class):
    labels = torch.arange(num_classes * num_per_class) % num_classes
    # Each image is the number of its sample, so that images and labels can be matched.
    images = torch.arange(len(labels))[:, None].div(torch.tensor([65536, 256, 1]), rounding_mode="floor").remainder(256)
    return Split(images.to(torch.uint8)[:, :, None, None], labels)


def numbers(split):
    stacked = torch.stack([split.images[index] for index in range(len(split))])
    return (stacked.long()[:, :, 0, 0] * torch.tensor([65536, 256, 1])).sum(dim=1)


@pytest.mark.parametrize(
    ("kind", "num_classes", "num_per_class", "ratio", "expected"),
    [
        # floor(5000 * 100^(-c/9)), the usual long-tailed CIFAR-10
        ("exponential", 10, 5000, 100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
        ("exponential", 5, 16, 16, [16, 8, 4, 2, 1]),
        ("step", 4, 100, 10, [100, 100, 10, 10]),
        ("step", 5, 30, 3, [30, 30, 10, 10, 10]),
    ],
)
def test_counts(kind, num_classes, num_per_class, ratio, expected):
    split = balanced(num_classes, num_per_class)
    assert long_tailed(split, kind=kind, ratio=ratio).labels.bincount().tolist() == expected


def test_uneven_classes_bound_the_tail():
    split = Split(torch.zeros(260, 1, 1, 1, dtype=torch.uint8), torch.tensor([0] * 50 + [1] * 200 + [2] * 10))
    # Class 2 has enough for 40 in the first class, class 0 for 50: 40 it is.
    assert long_tailed(split, kind="exponential", ratio=4).labels.bincount().tolist() == [40, 20, 10]


@pytest.mark.parametrize("streamed", [False, True])
def test_samples_keep_their_labels_and_their_order(streamed):
    split = balanced(4, 50)
    tail = long_tailed(Split(Streamed(split.images), split.labels) if streamed else split, kind="step", ratio=5)
    kept = numbers(tail)
    assert isinstance(tail.images, torch.Tensor) is not streamed
    assert torch.equal(tail.labels, split.labels[kept])
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert torch.equal(kept, numbers(long_tailed(split, kind="step", ratio=5)))
    # Part of what a result means: a change here makes old and new results incomparable.
    assert kept[-12:].tolist() == [180, 181, 184, 185, 188, 189, 190, 192, 193, 195, 196, 197]


def test_tails_that_leave_a_class_without_samples_are_refused():
    with pytest.raises(ValueError, match="leave every class a sample; got 11"):
        long_tailed(balanced(3, 10), kind="step", ratio=11)
    with pytest.raises(ValueError, match="got 2 for classes of 0 to 3"):
        long_tailed(Split(images(), torch.tensor([0, 2] * 3)), kind="step", ratio=2)


def test_a_few_of_each_class_are_always_the_same_and_within_more():
    split = balanced(5, 40)
    parts = [few_of_each(split, number) for number in (3, 8, 40)]
    assert [part.labels.bincount().tolist() for part in parts] == [[3] * 5, [8] * 5, [40] * 5]
    few, more, everything = (numbers(part).tolist() for part in parts)
    assert few == sorted(few)
    assert set(few) < set(more) < set(everything)
    assert everything == list(range(200))
    assert numbers(few_of_each(Split(Streamed(split.images), split.labels), 3)).tolist() == few
    assert torch.equal(parts[0].labels, split.labels[torch.tensor(few)])
    assert few[:5] == [9, 20, 26, 33, 39]
    with pytest.raises(ValueError, match="at least the 41 samples requested; got 40"):
        few_of_each(split, 41)
