import pytest
import torch
from torch.utils.data import Dataset

from guided_collapse.experiments.data.split import ImageData, Split


class Streamed(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


def images(num=6, side=4):
    return torch.randint(0, 256, (num, 3, side, side), dtype=torch.uint8)


def test_a_split_knows_its_size_and_shape():
    split = Split(images(), torch.arange(6) % 2)
    streamed = Split(Streamed(images()), torch.arange(6) % 2)
    assert len(split) == len(streamed) == 6
    assert split.image_shape == streamed.image_shape == (3, 4, 4)


def test_taking_samples_keeps_images_and_labels_together():
    pixels, labels, indices = images(), torch.arange(6), torch.tensor([4, 0, 3])
    for split in (Split(pixels, labels), Split(Streamed(pixels), labels)):
        part = split.take(indices)
        assert part.labels.tolist() == [4, 0, 3]
        assert isinstance(part.images, torch.Tensor) == isinstance(split.images, torch.Tensor)
        for place, index in enumerate(indices):
            assert torch.equal(part.images[place], pixels[index])


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (images(), torch.arange(5), "each image needs a label"),
        (images(0), torch.arange(0), "at least one"),
        (images(), torch.arange(6).int(), "labels must be int64"),
        (images(), torch.arange(6) - 1, "must not be negative; got -1"),
        (images().float(), torch.arange(6), "images in memory must be uint8"),
        (images()[0], torch.arange(3), "images in memory must be uint8"),
        (Streamed(images()), torch.arange(5), "each image needs a label"),
    ],
)
def test_a_split_refuses_what_does_not_belong_together(pixels, labels, message):
    with pytest.raises(ValueError, match=message):
        Split(pixels, labels)


def test_data_knows_its_classes_and_refuses_misfits():
    split, other = Split(images(), torch.arange(6) % 3), Split(images(side=5), torch.arange(6) % 3)
    data = ImageData("made up", split, split, ("a", "b", "c"))
    assert data.num_classes == 3
    assert data.image_shape == (3, 4, 4)
    with pytest.raises(ValueError, match="below its 2 classes; got 2 among the training labels"):
        ImageData("made up", split, split, ("a", "b"))
    with pytest.raises(ValueError, match="at least two classes; got a"):
        ImageData("made up", split, split, ("a",))
    with pytest.raises(ValueError, match="one shape"):
        ImageData("made up", split, other, ("a", "b", "c"))
