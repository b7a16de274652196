import pytest
import torch

from guided_collapse.experiments.data.augmentation.resampling import center_crop, resize, resized_windows, rotate, windows


def pictures(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("side", [6, 7])
@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3])
def test_quarter_turns_are_exact(side, quarters):
    images = pictures(3, 2, side, side)
    turned = rotate(images, torch.full((3,), 90.0 * quarters))
    # Rounding of the places leaves no more than one gray level.
    assert int((turned.int() - torch.rot90(images, quarters, dims=(2, 3)).int()).abs().max()) <= 1


def test_half_a_turn_of_an_oblong_image():
    images = pictures(2, 1, 4, 9)
    assert int((rotate(images, torch.full((2,), 180.0)).int() - images.flip(2, 3).int()).abs().max()) <= 1


def test_a_rotation_keeps_shapes_and_brings_black_in():
    images = torch.full((1, 1, 21, 41), 200, dtype=torch.uint8)
    turned = rotate(images, torch.tensor([90.0]))[0, 0]
    # The upright bar covers 21 columns in the middle; beyond them it is black.
    assert bool((turned[:, 11:30] == 200).all())
    assert bool((turned[:, :8] == 0).all())
    assert bool((turned[:, 33:] == 0).all())


@pytest.mark.parametrize("quarters", [1, -1])
def test_a_quarter_turn_of_an_oblong_image_turns_its_middle(quarters):
    images = pictures(2, 1, 9, 15)
    turned, middle = rotate(images, torch.full((2,), 90.0 * quarters)), images[..., 3:12]
    assert int((turned[..., 3:12].int() - torch.rot90(middle, quarters, dims=(2, 3)).int()).abs().max()) <= 1


def test_each_image_has_its_own_angle():
    images = pictures(2, 1, 5, 5)
    together = rotate(images, torch.tensor([30.0, -70.0]))
    assert torch.equal(together[:1], rotate(images[:1], torch.tensor([30.0])))
    assert torch.equal(together[1:], rotate(images[1:], torch.tensor([-70.0])))


def test_windows_against_slices():
    images = pictures(4, 3, 6, 8)
    tops, lefts, mirrored = torch.tensor([0, 1, 2, 3]), torch.tensor([4, 0, 2, 1]), torch.tensor([False, True, False, True])
    result = windows(images, tops, lefts, mirrored, size=(3, 4))
    for index in range(4):
        window = images[index, :, tops[index] : tops[index] + 3, lefts[index] : lefts[index] + 4]
        assert torch.equal(result[index], window.flip(-1) if mirrored[index] else window)


def test_a_resized_window_of_its_own_size_is_a_slice():
    images = pictures(1, 1, 8, 8)
    result = resized_windows(images, torch.tensor([[0.25, -0.5]]), torch.tensor([[0.5, 0.5]]), size=(4, 4))
    assert torch.equal(result, images[:, :, 0:4, 3:7])


def test_the_center():
    images = pictures(2, 1, 7, 8)
    assert torch.equal(center_crop(images, 4), images[:, :, 1:5, 2:6])
    with pytest.raises(ValueError, match="got 7 x 8 for a crop of 9"):
        center_crop(images, 9)


def test_resizing_averages_when_it_shrinks_and_keeps_constants():
    images = pictures(3, 1, 8, 8)
    assert torch.equal(resize(images, 8), images)
    assert bool((resize(torch.full((2, 3, 5, 6), 77, dtype=torch.uint8), 9) == 77).all())
    shrunk = resize(images, 2).double().mean((1, 2, 3))
    torch.testing.assert_close(shrunk, images.double().mean((1, 2, 3)), atol=6, rtol=0)
