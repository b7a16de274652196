import copy

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils import parametrizations

from guided_collapse import CosineHead, FixedETFHead, simplex_etf
from tests.heads.cases import batches, build, train


def test_rows_keep_norm_one_and_the_gradient_is_tangent():
    model = build("cosine")
    train(model, batches(5))
    head = model.head
    inputs, labels = next(batches(1))
    head.zero_grad()
    torch.nn.functional.cross_entropy(model.train()(inputs, labels), labels).backward()
    torch.testing.assert_close(head.learned_weight.norm(dim=1), torch.ones(5))
    torch.testing.assert_close((head.learned_weight * head.learned_weight.grad).sum(1), torch.zeros(5), rtol=0, atol=1e-6)


def test_centering_is_optional_and_off_as_in_the_paper():
    features, labels = torch.randn(20, 6) + 3, torch.arange(20) % 3
    plain, centered = CosineHead(6, 3, scale=5.0), CosineHead(6, 3, scale=5.0, center=True)
    centered.load_state_dict(plain.state_dict(), strict=False)
    points = 5.0 * features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(plain(features, labels), points @ plain.weight.T)
    torch.testing.assert_close(centered(features, labels), (points - points.mean(0)) @ plain.weight.T, rtol=0, atol=1e-5)
    assert torch.equal(plain.bias, torch.zeros(3))
    torch.testing.assert_close(centered.bias, -(centered.weight @ points.mean(0)))


def test_the_fixed_head_never_moves():
    head = FixedETFHead(6, 3)
    torch.testing.assert_close(head.weight, simplex_etf(3) @ torch.eye(3, 6))
    before = head.weight.clone()
    head(torch.randn(9, 6), torch.arange(9) % 3)
    assert torch.equal(head.weight, before)
    assert not list(head.parameters())
    uncentered = FixedETFHead(6, 3, scale=5.0, center=False)
    features = torch.randn(9, 6) + 2
    points = 5.0 * features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(uncentered(features, torch.arange(9) % 3), points @ uncentered.weight.T)


def loss_by_definition(weight, features, labels):
    points = 5.0 * features / features.norm(dim=1, keepdim=True)
    return torch.nn.functional.cross_entropy(points @ (weight / weight.norm(dim=1, keepdim=True)).T, labels)


@pytest.mark.parametrize("parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights_get_their_true_gradient(parametrize):
    head = CosineHead(6, 3, scale=5.0).double()
    with torch.no_grad():
        head.learned_weight.mul_(3.0)
    parametrize(head, "learned_weight")
    features, labels = torch.randn(9, 6, dtype=torch.float64), torch.arange(9) % 3
    head.eval()(features)
    twin = copy.deepcopy(head)
    torch.nn.functional.cross_entropy(head.train()(features, labels), labels).backward()
    loss_by_definition(twin.train().learned_weight, features, labels).backward()
    for expected, parameter in zip(twin.parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


def test_fast_weights_are_not_overwritten_and_get_their_true_gradient():
    head = CosineHead(6, 3, scale=5.0).double()
    features, labels = torch.randn(9, 6, dtype=torch.float64), torch.arange(9) % 3
    slow = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    fast = slow - 0.1 * slow.square()
    before = fast.detach().clone()
    own = head.learned_weight.detach().clone()
    loss = torch.nn.functional.cross_entropy(functional_call(head, {"learned_weight": fast}, (features, labels)), labels)
    (gradient,) = torch.autograd.grad(loss, slow)
    (expected,) = torch.autograd.grad(loss_by_definition(slow - 0.1 * slow.square(), features, labels), slow)
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(fast, before)
    assert torch.equal(head.learned_weight, own)
