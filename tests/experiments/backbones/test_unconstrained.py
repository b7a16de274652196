import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from guided_collapse import AGD, Classifier, CosineHead, FixedETFHead, NearestETFHead
from guided_collapse.experiments.backbones.backbone import UnconstrainedFeatures

HEADS = pytest.mark.parametrize("head", [NearestETFHead, FixedETFHead, CosineHead])


def test_rows_are_those_asked_for():
    model = UnconstrainedFeatures(6, 3)
    indices = torch.tensor([4, 0, 4])
    assert torch.equal(model(indices), model.features[[4, 0, 4]])
    assert torch.equal(model(torch.arange(6)), model.features)
    assert model(indices[:0]).shape == (0, 3)
    assert (model.num_samples, model.feature_dim) == (6, 3)


def test_the_gradient_is_summed_over_repeated_indices_and_zero_elsewhere():
    model = UnconstrainedFeatures(5, 2).double()
    upstream = torch.randn(4, 2, dtype=torch.float64)
    model(torch.tensor([1, 3, 1, 0])).backward(upstream)
    expected = torch.stack([upstream[3], upstream[0] + upstream[2], torch.zeros(2).double(), upstream[1], torch.zeros(2).double()])
    torch.testing.assert_close(model.features.grad, expected)


def test_initial_rows_have_norms_of_about_one_and_come_from_the_generator():
    first, again, other = (UnconstrainedFeatures(400, 100, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.features.norm(dim=1).mean().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(first.features, again.features)
    assert not torch.equal(first.features, other.features)
    torch.manual_seed(3)
    twin = UnconstrainedFeatures(400, 100)
    assert not torch.equal(UnconstrainedFeatures(400, 100).features, twin.features)
    torch.manual_seed(3)
    assert torch.equal(UnconstrainedFeatures(400, 100).features, twin.features)


@pytest.mark.parametrize(("num_samples", "feature_dim", "norm"), [(60, 20, 1.0), (20, 80, 0.5)])
def test_initial_rows_of_agd(num_samples, feature_dim, norm):
    model = UnconstrainedFeatures(num_samples, feature_dim)
    AGD(model.parameters()).init_weights()
    assert model.features.square().sum(dim=1).mean().sqrt().item() == pytest.approx(norm, rel=1e-5)


@HEADS
@pytest.mark.parametrize("num_samples", [40, 8])
def test_agd_trains_them_as_it_trains_a_linear_layer_on_one_hot_indices(head, num_samples):
    feature_dim, labels, indices = 16, torch.arange(num_samples) % 4, torch.arange(num_samples)
    rows = Classifier(UnconstrainedFeatures(num_samples, feature_dim), head(feature_dim, 4)).double()
    columns = Classifier(nn.Linear(num_samples, feature_dim, bias=False), copy.deepcopy(rows.head)).double()
    optimizers = [AGD(model.parameters(), gain=10.0) for model in (rows, columns)]
    optimizers[0].init_weights()
    with torch.no_grad():
        columns.backbone.weight.copy_(rows.backbone.features.T * feature_dim / num_samples)  # the norm that AGD would give it
        columns.head.load_state_dict(rows.head.state_dict())
    for _ in range(4):
        for model, optimizer, inputs in zip((rows, columns), optimizers, (indices, torch.eye(num_samples).double()), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs, labels), labels).backward()
            optimizer.step()
        torch.testing.assert_close(
            functional.normalize(columns.backbone.weight.T, dim=1), functional.normalize(rows.backbone.features, dim=1)
        )
