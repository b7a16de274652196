import pytest
import torch

from guided_collapse import CosineHead, cross_entropy_lower_bound
from guided_collapse.experiments.training.build import loss_lower_bound
from guided_collapse.geometry.bounds import tight_frame_cross_entropy_bound
from guided_collapse.heads.frame_head import FrameHead


class Frame(FrameHead):
    """Any head that is a frame."""

    def __init__(self, feature_dim, num_classes):
        super().__init__(feature_dim, num_classes, scale=5.0, center=True, direction="canonical", check_values=None)

    def _training_logits(self, points, labels):
        return points @ self.weight.T


@pytest.mark.parametrize(("num_classes", "feature_dim"), [(4, 8), (4, 3), (5, 3), (7, 5)])
def test_where_tight_frames_with_unit_rows_are_simplices_or_need_not_be_centered_it_is_the_bound_of_all_unit_rows(
    num_classes, feature_dim
):
    expected = cross_entropy_lower_bound(num_classes, 5.0)
    assert loss_lower_bound(Frame(feature_dim, num_classes)) == loss_lower_bound(CosineHead(feature_dim, num_classes)) == expected


def test_with_more_classes_a_frame_has_a_higher_bound_than_learned_rows():
    assert loss_lower_bound(Frame(3, 12)) == tight_frame_cross_entropy_bound(3, 12, 5.0)
    assert loss_lower_bound(CosineHead(3, 12)) == cross_entropy_lower_bound(12, 5.0) < loss_lower_bound(Frame(3, 12))


def test_features_of_any_norm_have_none():
    assert loss_lower_bound(CosineHead(3, 12, normalize=False)) is None


def test_no_features_are_below_it_centered_or_not():
    head = Frame(3, 6)
    head.frame.copy_(torch.cat([torch.eye(3), -torch.eye(3)]))
    bound = loss_lower_bound(head)
    generator = torch.Generator().manual_seed(0)
    for share in (0.0, 0.1, 0.5, 1.0):
        points = head.on_sphere(head.frame + share * torch.randn(6, 3, generator=generator))
        for center in (0, points.mean(dim=0)):
            assert torch.nn.functional.cross_entropy((points - center) @ head.frame.T, torch.arange(6)) >= bound * (1 - 1e-5)
