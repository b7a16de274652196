from dataclasses import replace

import pytest
import torch

from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.tasks import build_task
from tests.experiments.data.made_up import write_folders
from tests.experiments.runs import DIGITS, FREE, UNANCHORED

CHANGED = replace(DIGITS, flip=True, crop_padding=1, rotation=10.0)


@pytest.fixture
def pets(tmp_path):
    """A configuration for a folder with 20 images of each of three classes."""
    write_folders(tmp_path, num_per_class=20, classes=("cat", "dog", "eel"))
    return replace(DIGITS, data=str(tmp_path))


def epoch_of(configuration, epoch=1, **share):
    return list(build_task(configuration).training_batches(epoch, ProcessShare(**share)))


def test_heads_of_one_seed_see_the_same_batches_and_changes():
    first, *others = (epoch_of(replace(CHANGED, head=head)) for head in UNANCHORED)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert torch.equal(mine.inputs, theirs.inputs)
            assert torch.equal(mine.labels, theirs.labels)


@pytest.mark.parametrize("protocol", ["fair", "paper"])
def test_batches_do_not_depend_on_the_number_of_processes(protocol):
    configuration = replace(DIGITS, protocol=protocol, head="cosine", batch_size=100)
    whole = epoch_of(configuration)
    parts = zip(*(epoch_of(configuration, rank=rank, processes=3) for rank in range(3)), strict=True)
    for batch, dealt in zip(whole, parts, strict=True):
        joined = torch.cat([part.inputs for part in dealt]).flatten(1)
        assert sorted(map(tuple, joined.tolist())) == sorted(map(tuple, batch.inputs.flatten(1).tolist()))
        sizes = [len(part.labels) for part in dealt]
        assert max(sizes) - min(sizes) <= 1


def class_spread(configuration):
    counts = [batch.labels.bincount(minlength=10) for batch in epoch_of(configuration)]
    return max(int(count.max() - count.min()) for count in counts)


def test_the_papers_protocol_stratifies_for_implicit_heads_alone():
    assert class_spread(replace(DIGITS, protocol="fair", head="cosine")) <= 3
    assert class_spread(replace(DIGITS, protocol="paper", head="nearest-etf")) <= 3
    assert class_spread(replace(DIGITS, protocol="paper", head="fixed-etf")) > 5


@pytest.mark.parametrize("configuration", [CHANGED, FREE], ids=["images", "free"])
def test_clean_batches_give_every_sample_once_and_always_the_same(configuration):
    task = build_task(configuration)
    one = torch.cat([labels for _, labels in task.clean_batches(ProcessShare(), test=False)])
    assert torch.equal(one, task.train_labels)
    again = [torch.cat([inputs for inputs, _ in task.clean_batches(ProcessShare(), test=False)]) for _ in range(2)]
    assert torch.equal(*again)
    shares = [sum(len(labels) for _, labels in task.clean_batches(ProcessShare(rank, 2), test=False)) for rank in range(2)]
    assert sum(shares) == task.num_train


def test_a_users_folder_and_a_long_tail(pets):
    task = build_task(pets)
    assert task.input_facts().class_names == ("cat", "dog", "eel")
    inputs = torch.cat([inputs for inputs, _ in task.clean_batches(ProcessShare(), test=False)])
    torch.testing.assert_close(inputs.mean(dim=(0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    tail = replace(pets, long_tail="exponential", long_tail_ratio=4.0)
    assert build_task(tail).train_labels.bincount().tolist() == [20, 10, 5]
    assert build_task(replace(tail, images_per_class=8)).train_labels.bincount().tolist() == [8, 4, 2]


def test_a_few_images_of_each_class_are_the_same_for_every_seed_and_test_is_left_alone(pets):
    whole, task, same = (build_task(each) for each in (pets, *(replace(pets, images_per_class=8, seed=seed) for seed in (0, 1))))
    assert task.train_labels.bincount().tolist() == [8] * 3
    assert torch.equal(task.data.test.images, whole.data.test.images)
    assert torch.equal(task.data.train.images, same.data.train.images)


def test_validation_images_are_training_images_of_every_class_and_never_test_images(pets):
    whole = build_task(pets).data
    task = build_task(replace(pets, validation_fraction=0.25)).data
    parts = [{image.numpy().tobytes() for image in part.images} for part in (task.train, task.test, whole.train, whole.test)]
    train, validation, all_training, test = parts
    assert [len(part) for part in parts] == [45, 15, 60, 60]
    assert train | validation == all_training
    assert not train & validation
    assert not (train | validation) & test
    assert task.test.labels.bincount().tolist() == [5, 5, 5]
    assert build_task(replace(pets, images_per_class=8, validation_fraction=0.25)).train_labels.bincount().tolist() == [6, 6, 6]
