import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from guided_collapse import NearestETFHead, NearestETFLoss

EMBEDDINGS, LABELS = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12, dtype=torch.int32) % 3


def test_it_is_the_cross_entropy_of_the_head():
    loss_of, head = NearestETFLoss(3, 8, scale=10.0), NearestETFHead(8, 3, scale=10.0)
    features = EMBEDDINGS.clone().requires_grad_()
    loss, expected = loss_of(features, LABELS), cross_entropy(head(features, LABELS), LABELS.long())
    assert torch.equal(loss, expected)
    gradients = [torch.autograd.grad(value, features)[0] for value in (loss, expected)]
    assert torch.equal(*gradients)
    assert torch.equal(loss_of.eval()(EMBEDDINGS, LABELS), cross_entropy(head.eval()(EMBEDDINGS), LABELS.long()))


@pytest.mark.parametrize("training", [True, False])
def test_get_logits_are_those_of_eval_mode_and_change_no_state(training):
    loss_of = NearestETFLoss(3, 8)
    loss_of(EMBEDDINGS, LABELS)
    before = copy.deepcopy(loss_of.state_dict())
    logits = loss_of.train(training).get_logits(EMBEDDINGS)
    torch.testing.assert_close(logits, loss_of.head.on_sphere(EMBEDDINGS) @ loss_of.head.weight.T + loss_of.head.bias)
    assert all(torch.equal(before[key], value) for key, value in loss_of.state_dict().items())
    with pytest.raises(ValueError, match="feature_dim=8"):
        loss_of.get_logits(torch.ones(2, 3))
    assert loss_of.head.training is training


def test_miner_outputs_and_unknown_options_raise():
    with pytest.raises(ValueError, match="indices_tuple must be None"):
        NearestETFLoss(3, 8)(EMBEDDINGS, LABELS, (LABELS, LABELS, LABELS))
    with pytest.raises(TypeError, match="margin"):
        NearestETFLoss(3, 8, margin=1.0)
