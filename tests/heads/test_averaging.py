"""Averaged weights: parameters are averaged, and a frame stays one."""

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from guided_collapse.geometry.nearest import tightness_defect
from tests.heads.cases import batches, build, train

nearest = pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "tight"])


def is_frame(head):
    """Whether cosines between rows are all -1/(C-1); or, for more classes than dimensions, rows are unit and tight."""
    num_classes = head.num_classes
    if not head.is_simplex:
        return float(tightness_defect(head.weight)) < 1e-2 and torch.allclose(head.weight.norm(dim=1), torch.ones(num_classes))
    expected = (torch.eye(num_classes) * num_classes - 1) / (num_classes - 1)
    return torch.allclose(head.weight @ head.weight.T, expected, atol=1e-4)


def averaged_over_training(name, **options):
    model = build(name)
    averaged = AveragedModel(model, **options)
    for batch in batches(8, num_classes=model.head.num_classes):
        train(model, [batch])
        averaged.update_parameters(model)
    return model, averaged.module


@nearest
@pytest.mark.parametrize("options", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}], ids=["mean", "moving"])
def test_by_default_buffers_are_those_of_the_model(name, options):
    model, averaged = averaged_over_training(name, **options)
    assert is_frame(averaged.head)
    for key, value in model.head.state_dict().items():
        assert torch.equal(averaged.head.state_dict()[key], value)
    assert not torch.equal(averaged.backbone[0].weight, model.backbone[0].weight)


@nearest
def test_averaged_buffers_are_put_right_by_the_state_of_the_model(name):
    model, averaged = averaged_over_training(name, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    assert not is_frame(averaged.head)
    averaged.head.load_state_dict(model.head.state_dict())
    assert is_frame(averaged.head)
    train(averaged, batches(2, num_classes=model.head.num_classes), torch.optim.SGD(averaged.parameters(), lr=0.0))
    assert is_frame(averaged.head)
