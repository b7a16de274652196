import pytest
import torch

from guided_collapse.geometry.directions import frame_basis
from guided_collapse.geometry.frames import tightness_defect
from guided_collapse.geometry.simplex import frame_weight
from guided_collapse.geometry.tight.tight import tight_frame


@pytest.mark.parametrize("direction", ["canonical", "random"])
@pytest.mark.parametrize(("num_classes", "feature_dim"), [(40, 7), (41, 6), (41, 9), (50, 30), (31, 29), (3, 1)])
def test_unit_rows_and_tight(direction, num_classes, feature_dim):
    weight = tight_frame(num_classes, feature_dim, direction=direction, dtype=torch.float64)
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(num_classes, dtype=torch.float64))
    assert float(tightness_defect(weight)) < 1e-3


@pytest.mark.parametrize("direction", ["canonical", "random"])
@pytest.mark.parametrize(("num_classes", "feature_dim"), [(40, 7), (41, 9), (6, 4), (3, 1)])
def test_tight_and_centered_exactly_without_unit_rows(direction, num_classes, feature_dim):
    weight = tight_frame(num_classes, feature_dim, direction=direction, unit_rows=False, dtype=torch.float64)
    assert float(tightness_defect(weight)) < 1e-12
    torch.testing.assert_close(weight.sum(0), torch.zeros(feature_dim, dtype=torch.float64), rtol=0, atol=1e-12)


def test_simplex_etf_where_one_exists():
    assert torch.equal(tight_frame(4, 6), frame_weight(frame_basis(6, 4)))


def test_random_frames_come_from_the_generator_handed_in():
    first, again, other = (
        tight_frame(9, 3, direction="random", generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_half_precision():
    assert tight_frame(9, 3, direction="random", dtype=torch.bfloat16).dtype == torch.bfloat16


def test_refusals():
    with pytest.raises(ValueError, match=r"direction must be one of canonical, random; got 'up'"):
        tight_frame(9, 4, direction="up")
    with pytest.raises(ValueError, match="feature_dim must be a whole number, at least 1; got 0"):
        tight_frame(9, 0)
