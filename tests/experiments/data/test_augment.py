import itertools

import pytest
import torch

from guided_collapse.experiments.data import Augmentation
from guided_collapse.experiments.data import augment as module
from guided_collapse.experiments.data.augment import augment, center_crop, normalize, pixel_statistics, resize, rotate
from guided_collapse.experiments.data.split import Split
from tests.experiments.data.test_split import Streamed


def pictures(num=64, channels=3, height=7, width=7, seed=0):
    return torch.randint(1, 256, (num, channels, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def shifted(image, down, right):
    """Moves one image by whole pixels and fills with black, in a loop over every pixel."""
    result = torch.zeros_like(image)
    for row, column in itertools.product(range(image.shape[1]), range(image.shape[2])):
        if 0 <= row + down < image.shape[1] and 0 <= column + right < image.shape[2]:
            result[:, row, column] = image[:, row + down, column + right]
    return result


def which_shift(image, result, padding, mirrored=(False, True)):
    """(down, right, mirrored) that turn the image into the result, or None."""
    for down, right, flip in itertools.product(range(-padding, padding + 1), range(-padding, padding + 1), mirrored):
        candidate = shifted(image, down, right)
        if torch.equal(candidate.flip(-1) if flip else candidate, result):
            return down, right, flip
    return None


def test_a_padded_crop_with_flip_is_a_shift_with_black_borders():
    images = pictures(num=200, height=6, width=5)
    results = augment(images, Augmentation(flip=True, crop_padding=2), generator())
    found = [which_shift(image, result, 2) for image, result in zip(images, results, strict=True)]
    assert None not in found
    # Every shift and both orientations turn up, independently of each other.
    assert {shift[0] for shift in found} == {shift[1] for shift in found} == set(range(-2, 3))
    assert 60 < sum(shift[2] for shift in found) < 140
    assert len(set(found)) > 40


def test_a_crop_of_another_size_is_a_window():
    images = pictures(num=30, height=8, width=9)
    results = augment(images, Augmentation(crop_size=5), generator())
    assert results.shape == (30, 3, 5, 5)
    for image, result in zip(images, results, strict=True):
        assert any(torch.equal(image[:, top : top + 5, left : left + 5], result) for top in range(4) for left in range(5))


def test_rotation_stays_within_its_angle():
    # A bar through the center: the direction of its pixels is the angle.
    images = torch.zeros(300, 1, 33, 33, dtype=torch.uint8)
    images[:, :, 16, :] = 255
    results = augment(images, Augmentation(rotation=20.0), generator()).float()[:, 0]
    across = torch.arange(33) - 16.0
    weight = results[:, 8:25, 8:25]
    rows, columns = across[8:25, None], across[None, 8:25]
    angles = torch.atan2(-(weight * rows * columns).sum((1, 2)), (weight * columns.square()).sum((1, 2))).rad2deg()
    assert 17 < float(angles.max()) < 20.5
    assert -20.5 < float(angles.min()) < -17
    assert abs(float(angles.mean())) < 2


def test_random_resized_crops_show_parts_of_the_image_undistorted_in_value():
    ramp = torch.arange(64, dtype=torch.uint8).mul(3).expand(200, 1, 64, 64).contiguous()
    results = augment(ramp, Augmentation(crop_size=32, random_resized=True), generator()).float()
    assert results.shape == (200, 1, 32, 32)
    # Along the ramp the crop stays a ramp, whose slope is the share of the width; down it is constant.
    assert float((results - results[:, :, :1]).abs().max()) <= 1
    shares = (results[:, 0, 0, 28] - results[:, 0, 0, 4]) / 24 / 6
    assert 0.2 < float(shares.min()) < 0.45
    assert 0.95 < float(shares.max()) < 1.01
    starts = results[:, 0, 0, 0]
    assert float(starts.min()) < 6
    assert float(starts.max()) > 90
    assert float(results.max()) <= 189


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(flip=True, crop_padding=4),
        Augmentation(flip=True, crop_padding=2, rotation=15.0),
        Augmentation(flip=True, crop_size=5, random_resized=True),
    ],
)
def test_the_generator_alone_decides(augmentation):
    images = pictures()
    before, global_state = images.clone(), torch.get_rng_state()
    first = augment(images, augmentation, generator(3))
    assert torch.equal(first, augment(images, augmentation, generator(3)))
    assert not torch.equal(first, augment(images, augmentation, generator(4)))
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), global_state)
    source = generator(3)
    halves = [augment(part, augmentation, source) for part in images.split([10, 54])]
    assert torch.equal(torch.cat(halves), first)


def test_one_change_does_not_move_another():
    images = pictures()
    flips = augment(images, Augmentation(flip=True), generator())
    both = augment(images, Augmentation(flip=True, crop_padding=1), generator())
    mirrored = [not torch.equal(image, flip) for image, flip in zip(images, flips, strict=True)]
    assert [which_shift(image, result, 1)[2] for image, result in zip(images, both, strict=True)] == mirrored


@pytest.mark.parametrize("size", [(6, 6), (7, 7), (9, 15)])
@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3])
def test_quarter_turns_are_exact_in_the_middle_square(size, quarters):
    images = pictures(3, 2, *size)
    assert torch.equal(center_crop(images, 4), images[:, :, (size[0] - 4) // 2 :, (size[1] - 4) // 2 :][:, :, :4, :4])
    turned, middle = rotate(images, torch.full((3,), 90.0 * quarters)), center_crop(images, min(size))
    # Rounding of the places leaves no more than one gray level.
    difference = center_crop(turned, min(size)).int() - torch.rot90(middle, quarters, dims=(2, 3)).int()
    assert int(difference.abs().max()) <= 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="cannot be combined with padding"):
        Augmentation(random_resized=True, crop_padding=4)
    with pytest.raises(ValueError, match="got 7 x 7 for a crop of 9"):
        center_crop(pictures(), 9)
    with pytest.raises(ValueError, match="as large as the crop"):
        augment(pictures(), Augmentation(crop_size=8), generator())
    with pytest.raises(ValueError, match="each of the 3 channels; got 1 and 1"):
        normalize(pictures(), (0.5,), (0.5,))


def test_resizing_averages_when_it_shrinks_and_keeps_constants():
    images = pictures(3, 1, 8, 8)
    assert torch.equal(resize(images, 8), images)
    assert bool((resize(torch.full((2, 3, 5, 6), 77, dtype=torch.uint8), 9) == 77).all())
    shrunk = resize(images, 2).double().mean((1, 2, 3))
    torch.testing.assert_close(shrunk, images.double().mean((1, 2, 3)), atol=6, rtol=0)


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
    monkeypatch.setattr(module, "MAX_IMAGES", 2)
    # The chosen ones are constant: nothing to divide by.
    assert pixel_statistics(Split(images, torch.zeros(10, dtype=torch.int64))) == ((1.0,), (1.0,))


def test_normalized_pixels():
    images = pictures(num=50)
    values = images.double() / 255
    mean, std = values.mean((0, 2, 3)), values.std((0, 2, 3), correction=0)
    expected = ((values - mean[:, None, None]) / std[:, None, None]).float()
    for given in (images, values, values.float()):
        before = given.clone()
        torch.testing.assert_close(normalize(given, mean.tolist(), std.tolist()), expected, atol=2e-6, rtol=1e-5)
        assert torch.equal(given, before)
