import pytest
import torch

from guided_collapse.experiments.data.sampling.thinning import few_of_each, long_tailed
from guided_collapse.experiments.data.split import Split
from tests.experiments.data.test_split import Streamed


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
        ("exponential", 3, 400, 4, [400, 200, 100]),
        ("exponential", 5, 16, 16, [16, 8, 4, 2, 1]),
        ("exponential", 2, 10, 1, [10, 10]),
        ("step", 4, 100, 10, [100, 100, 10, 10]),
        ("step", 5, 30, 3, [30, 30, 10, 10, 10]),
    ],
)
def test_counts(kind, num_classes, num_per_class, ratio, expected):
    split = balanced(num_classes, num_per_class)
    assert long_tailed(split, kind=kind, ratio=ratio).labels.bincount().tolist() == expected


def test_uneven_classes_bound_the_tail():
    labels = torch.tensor([0] * 50 + [1] * 200 + [2] * 10)
    split = Split(torch.zeros(260, 1, 1, 1, dtype=torch.uint8), labels)
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratio": 0.5}, "at least 1; got 0.5"),
        ({"ratio": float("nan")}, "at least 1; got nan"),
        ({"ratio": 11}, "leave every class a sample; got 11"),
        ({"kind": "cliff"}, "must be exponential or step; got 'cliff'"),
    ],
)
def test_tails_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        long_tailed(balanced(3, 10), **{"kind": "step", "ratio": 2, **changes})


def test_an_absent_class():
    with pytest.raises(ValueError, match=r"every one of at least two classes; got \[3, 0, 3\]"):
        long_tailed(Split(torch.zeros(6, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 2] * 3)), kind="step", ratio=2)


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


@pytest.mark.parametrize("number", [0, 11])
def test_more_than_there_are_are_refused(number):
    with pytest.raises(ValueError, match=f"as many samples as are asked for; got 10 and {number}. Ask for fewer"):
        few_of_each(balanced(3, 10), number)
