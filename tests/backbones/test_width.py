import pytest

from guided_collapse.backbones.width import scaled


@pytest.mark.parametrize(("width", "expected"), [(1.0, 64), (0.25, 16), (2, 128), (0.3, 19), (0.29, 19), (0.001, 1)])
def test_channels_are_rounded_to_the_nearest_and_at_least_one(width, expected):
    assert scaled(64, width) == expected


@pytest.mark.parametrize("width", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_width_must_be_positive(width):
    with pytest.raises(ValueError, match=f"width must be a positive, finite number; got {width}"):
        scaled(64, width)
