import pytest
import torch

from guided_collapse.experiments.data.augmentation import normalize as module
from guided_collapse.experiments.data.augmentation.normalize import normalize, pixel_statistics
from guided_collapse.experiments.data.split import Split
from tests.experiments.data.augmentation.test_augment import pictures
from tests.experiments.data.test_split import Streamed


def test_mean_and_standard_deviation_of_every_channel():
    images = torch.randint(0, 256, (40, 3, 6, 5), dtype=torch.uint8)
    images[:, 1] //= 3
    labels = torch.zeros(40, dtype=torch.int64)
    values = images.double() / 255
    for split in (Split(images, labels), Split(Streamed(images), labels)):
        found = pixel_statistics(split)
        torch.testing.assert_close(torch.tensor(found.mean).double(), values.mean((0, 2, 3)), atol=1e-6, rtol=0)
        torch.testing.assert_close(torch.tensor(found.std).double(), values.std((0, 2, 3), correction=0), atol=1e-6, rtol=0)


def test_a_part_is_taken_at_even_distances(monkeypatch):
    images = torch.zeros(10, 1, 2, 2, dtype=torch.uint8)
    images[::5] = 255
    monkeypatch.setattr(module, "MOST_IMAGES", 2)
    found = pixel_statistics(Split(images, torch.zeros(10, dtype=torch.int64)))
    assert found.mean == (1.0,)
    assert found.std == (1.0,)  # constant: nothing to divide by


def test_normalized_pixels_have_mean_0_and_standard_deviation_1():
    images = pictures(num=50)
    values = images.double() / 255
    mean, std = values.mean((0, 2, 3)), values.std((0, 2, 3), correction=0)
    result = normalize(images, mean.tolist(), std.tolist())
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, ((values - mean[:, None, None]) / std[:, None, None]).float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(result.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floating_point_images_run_from_0_to_1_and_are_left_as_they_are(dtype):
    images = pictures(num=4).to(dtype) / 255
    before = images.clone()
    result = normalize(images, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    torch.testing.assert_close(result, normalize(pictures(num=4), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), atol=1e-5, rtol=1e-5)
    assert torch.equal(images, before)


def test_statistics_for_other_channels():
    with pytest.raises(ValueError, match="each of the 3 channels; got 1 and 1"):
        normalize(pictures(), (0.5,), (0.5,))
