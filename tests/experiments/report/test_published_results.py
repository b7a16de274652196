"""Spot checks against the printed tables."""

import pytest

from guided_collapse.experiments.report.published_results import MEMORY_HEADS, Printed, paper_accuracy, paper_memory

EXPERIMENTS = [
    "cifar10-resnet18",
    "cifar10-vgg13",
    "cifar100-resnet50",
    "cifar100-vgg13",
    "stl10-resnet50",
    "stl10-vgg13",
    "imagenet-resnet50",
]


def test_accuracy_as_printed():
    assert paper_accuracy("train", "cifar10-resnet18", 50) == {
        "cosine": Printed(87.42, 86.1, 89.7),
        "fixed-etf": Printed(86.89, 84.7, 88.6),
        "nearest-etf": Printed(88.71, 88.5, 89.6),
    }
    assert paper_accuracy("test", "stl10-vgg13", 200)["nearest-etf"] == Printed(79.94, 79.5, 80.9)


def test_imagenet_was_run_without_the_gradient():
    assert set(paper_accuracy("test", "imagenet-resnet50", 200)) == {"cosine", "fixed-etf", "nearest-etf-detached"}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_medians_lie_in_their_ranges_but_for_the_one_misprint(experiment):
    for split in ("train", "test"):
        for epoch in (50, 200):
            figures = paper_accuracy(split, experiment, epoch)
            assert len(figures) == 3
            for head, (median, low, high) in figures.items():
                misprint = (split, experiment, epoch, head) == ("train", "stl10-resnet50", 50, "cosine")
                assert (low - 0.05 <= median <= high + 0.05) is not misprint


def test_nothing_is_made_up():
    assert paper_accuracy("train", "digits", 50) == {}
    assert paper_accuracy("train", "cifar10-resnet18", 100) == {}
    assert paper_memory("digits") == {}


def test_memory_as_printed():
    assert paper_memory("ufm-200") == dict(zip(MEMORY_HEADS, (1.7, 1.7, 1.8, 70.3), strict=True))
    assert paper_memory("imagenet-resnet50")["nearest-etf"] is None
