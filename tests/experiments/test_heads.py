from dataclasses import replace

import pytest
import torch
from torch import nn

from guided_collapse import CosineHead, cross_entropy_lower_bound
from guided_collapse.experiments.heads import HEADS, build_head
from guided_collapse.experiments.loop import loss_lower_bound
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.geometry import tight_frame_cross_entropy_bound
from guided_collapse.heads.head import Head

AFFINE = replace(PRESETS["omniglot-small"], head="linear")


def built(feature_dim=6, num_classes=4, **changes):
    if changes.get("head") == "anchored":
        changes["upgrade_of"] = "an older run"
    return build_head(replace(AFFINE, **changes), feature_dim, num_classes, torch.Generator().manual_seed(0))


def test_linear_is_the_layer_that_people_have():
    layer = built()
    assert type(layer) is nn.Linear
    assert layer.bias.tolist() == [0.0] * 4
    assert built(affine=False).bias is None
    # Torch's own initial weight, drawn by the generator.
    expected = torch.empty(4, 6).uniform_(-(6**-0.5), 6**-0.5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_is_built_from_its_entry(name):
    head = built(head=name, scale=7.0)
    assert (head.in_features, head.out_features) == (6, 4)
    if isinstance(head, Head):
        assert head.scale == 7.0
    again = built(head=name, scale=7.0)
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in head.state_dict().items())


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(8, 4), (3, 4), (3, 5), (5, 7)])
def test_simplices_and_frames_that_need_not_be_centered_have_the_bound_of_all_unit_rows(feature_dim, num_classes):
    expected = cross_entropy_lower_bound(num_classes, 5.0)
    assert loss_lower_bound(built(feature_dim, num_classes, head="fixed-etf", scale=5.0)) == expected
    assert loss_lower_bound(CosineHead(feature_dim, num_classes, scale=5.0)) == expected


def test_with_more_classes_a_frame_has_a_higher_bound_than_learned_rows_and_nn_linear_has_none():
    frame = loss_lower_bound(built(3, 12, head="fixed-etf", scale=5.0))
    assert frame == tight_frame_cross_entropy_bound(3, 12, 5.0)
    assert loss_lower_bound(CosineHead(3, 12, scale=5.0)) == cross_entropy_lower_bound(12, 5.0) < frame
    assert loss_lower_bound(built()) is None
