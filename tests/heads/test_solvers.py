"""Heads with either solver train alike, also if their frames move only every few steps."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from guided_collapse import NearestETFHead, nearest_etf


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("feature_dim", "lagged", "solvers", "num_steps", "compared_every"),
    [
        (32, False, ("products", "factors"), 500, 1),
        (6, True, ("factors", "products"), 300, 10),
        (6, False, ("factors", "products"), 300, 10),
    ],
    ids=["simplex ETF", "tight frame, lagged", "tight frame"],
)
def test_the_solvers_agree_along_a_real_training_run(feature_dim, lagged, solvers, num_steps, compared_every):
    """Trains on digits with one solver and compares frame and feature gradients with those of the other."""
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(values) for values in load_digits(return_X_y=True))
    images = images.float() / 16
    backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, feature_dim))
    head, other = (NearestETFHead(feature_dim, 10, lagged=lagged, every=1, solver=solver) for solver in solvers)
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1, momentum=0.9)

    def gradient(head, features, labels):
        leaf = features.detach().clone().requires_grad_()
        functional.cross_entropy(head(leaf, labels), labels).backward()
        return leaf.grad

    for step in range(1, num_steps + 1):
        chosen = torch.randint(len(images), (100,))
        features = backbone(images[chosen])
        # By products, the first frame is within a thousandth of the limit that the factors give.
        compared = step > 1 and step % compared_every == 0
        if compared:
            other.load_state_dict(head.state_dict())
            expected = gradient(other, features, labels[chosen])
        found = gradient(head, features, labels[chosen])
        if compared:
            torch.testing.assert_close(head.weight, other.weight, rtol=0, atol=1e-5)
            assert float((found - expected).norm()) < 1e-3 * float(expected.norm())
        optimizer.zero_grad()
        features.backward(found)
        optimizer.step()
    assert float((head.eval()(backbone(images)).argmax(dim=1) == labels).float().mean()) > 0.97


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_a_lagged_frame_moves_every_few_steps(solver):
    torch.manual_seed(0)
    head = NearestETFHead(8, 4, lagged=True, every=3, solver=solver)
    labels = torch.arange(12) % 4
    moved, means_moved = [], []
    for _ in range(7):
        frame, means = head.weight.clone(), head.class_means.running.clone()
        basis = head.basis.clone()
        head(torch.randn(12, 8), labels)
        moved.append(not torch.equal(head.weight, frame))
        means_moved.append(not torch.equal(head.class_means.running, means))
        if moved[-1]:
            is_first = head.class_means.steps == 1
            expected = nearest_etf(head.class_means.running, basis, proximal_weight=1e-3, solver=solver, first_step=is_first)
            torch.testing.assert_close(head.weight, expected.weight)
    assert moved == [True, False, False, True, False, False, True]
    assert all(means_moved)


def test_vmap_over_eight_heads():
    torch.manual_seed(0)
    heads = [NearestETFHead(8, 4, solver="products", direction="random") for _ in range(8)]
    labels, features = torch.arange(12) % 4, torch.randn(8, 12, 8)
    state = {name: torch.stack([dict(head.named_buffers())[name] for head in heads]) for name, _ in heads[0].named_buffers()}
    template = NearestETFHead(8, 4, solver="products")

    def call(state, features):
        return torch.func.functional_call(template, state, (features, labels))

    logits = torch.func.vmap(call)(state, features)
    expected = torch.stack([head(each, labels) for head, each in zip(heads, features, strict=True)])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    # The state of every head has its batch.
    torch.testing.assert_close(state["frame"], torch.stack([head.weight for head in heads]), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_second_derivatives_by_products():
    torch.manual_seed(0)
    labels, features = torch.arange(12) % 4, torch.randn(12, 8, dtype=torch.float64, requires_grad=True)

    def logits(features):
        return NearestETFHead(8, 4, solver="products").double()(features, labels)

    assert torch.autograd.gradgradcheck(logits, features)
