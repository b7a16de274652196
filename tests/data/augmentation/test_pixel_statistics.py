import torch

from guided_collapse.data.augmentation.pixel_statistics import pixel_statistics
from guided_collapse.data.split import Split
from tests.data.test_split import Streamed


def test_mean_and_standard_deviation_of_every_channel():
    images = torch.randint(0, 256, (40, 3, 6, 5), dtype=torch.uint8)
    images[:, 1] //= 3
    labels = torch.zeros(40, dtype=torch.int64)
    values = images.double() / 255
    for split in (Split(images, labels), Split(Streamed(images), labels)):
        found = pixel_statistics(split)
        torch.testing.assert_close(torch.tensor(found.mean).double(), values.mean((0, 2, 3)), atol=1e-6, rtol=0)
        torch.testing.assert_close(torch.tensor(found.std).double(), values.std((0, 2, 3), correction=0), atol=1e-6, rtol=0)


def test_a_part_is_taken_at_even_distances():
    images = torch.zeros(10, 1, 2, 2, dtype=torch.uint8)
    images[::5] = 255
    found = pixel_statistics(Split(images, torch.zeros(10, dtype=torch.int64)), most=2)
    assert found.mean == (1.0,)
    assert found.std == (1.0,)  # constant: nothing to divide by
