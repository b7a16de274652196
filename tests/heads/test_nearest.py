import copy
import math

import pytest
import torch

from guided_collapse import NearestETFHead, nearest_etf, simplex_etf
from tests.heads.cases import assert_same_state, batches, build, train


def sphere(features):
    return 5.0 * features / features.norm(dim=1, keepdim=True)


def is_simplex_etf(weight):
    frame = simplex_etf(len(weight))
    return torch.allclose(weight @ weight.T, frame @ frame.T, atol=1e-5)


def first_batch():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(20, 12, generator=generator), torch.arange(20) % 5


def test_first_step_is_the_papers_two_solves():
    features, labels = first_batch()
    head = NearestETFHead(12, 5, scale=5.0)
    initial = head.basis.clone()
    logits = head(features, labels)
    points = sphere(features)
    global_mean = points.mean(0)
    means = torch.stack([points[labels == label].mean(0) for label in range(5)]) - global_mean
    anchor = nearest_etf(means, initial, proximal_weight=0.0).basis
    expected = nearest_etf(means, anchor, proximal_weight=1e-3)
    torch.testing.assert_close(head.weight, expected.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(head.basis, expected.basis, rtol=0, atol=1e-6)
    torch.testing.assert_close(logits, (points - global_mean) @ expected.weight.T, rtol=0, atol=1e-5)


def test_later_steps_have_the_previous_solution_as_proximal_point():
    model = build("nearest-etf")
    train(model, batches(4))
    head = model.head
    before = head.basis.clone()
    inputs, labels = next(batches(1, seed=9))
    model.train()(inputs, labels)
    expected = nearest_etf(head.class_means.running, before, proximal_weight=1e-3)
    torch.testing.assert_close(head.basis, expected.basis, rtol=0, atol=1e-5)
    assert is_simplex_etf(head.weight)


@pytest.mark.parametrize("sizes", [(12, 5), (12, 30)])
def test_a_lagged_head_classifies_with_the_frame_of_the_previous_steps(sizes):
    head = NearestETFHead(*sizes, scale=5.0, lagged=True, every=1).double()
    features, labels = torch.randn(40, 12, dtype=torch.float64, requires_grad=True), torch.arange(40) % sizes[1]
    gradients = []
    for step in range(3):
        weight = head.weight.clone()
        points = sphere(features.roll(step, 0))
        expected = (points - points.mean(0)) @ weight.T
        logits = head(features.roll(step, 0), labels)
        torch.testing.assert_close(logits, expected)
        gradients.append((logits, torch.autograd.grad(expected.square().sum(), features)[0]))
        assert not torch.allclose(head.weight, weight)
    # The frames have moved, but the graphs keep theirs.
    for logits, gradient in gradients:
        torch.testing.assert_close(torch.autograd.grad(logits.square().sum(), features)[0], gradient)


def test_a_lagged_head_has_the_state_of_one_that_is_not():
    lagged, plain = NearestETFHead(12, 5, lagged=True), NearestETFHead(12, 5)
    for inputs, labels in batches(3):
        features = torch.nn.functional.pad(inputs, (0, 4))
        lagged(features, labels)
        plain(features, labels)
    assert_same_state(lagged, plain)


def gradient_of(head, features, labels):
    leaf = features.clone().requires_grad_()
    torch.nn.functional.cross_entropy(head(leaf, labels), labels).backward()
    return leaf.grad


def test_gradient_flows_through_the_solve_and_can_be_dropped():
    features, labels = first_batch()
    head = NearestETFHead(12, 5, scale=5.0).double()
    # The second step, because on the first the proximal point comes from the same batch and is held constant.
    head(features.roll(1, 0).double(), labels)
    state = copy.deepcopy(head.state_dict())
    features = features.double().requires_grad_()

    def loss(features):
        head.load_state_dict(state)
        return torch.nn.functional.cross_entropy(head(features, labels), labels)

    assert torch.autograd.gradcheck(loss, (features,))
    head.load_state_dict(state)
    full = gradient_of(head, features.detach(), labels)
    detached = NearestETFHead(12, 5, scale=5.0, implicit_gradient=False).double()
    detached.load_state_dict(state)
    dropped = gradient_of(detached, features.detach(), labels)
    points = sphere(features)
    at_a_constant_frame = torch.nn.functional.cross_entropy((points - points.mean(0)) @ head.weight.T, labels)
    torch.testing.assert_close(dropped, torch.autograd.grad(at_a_constant_frame, features)[0])
    assert (full - dropped).norm() > 0.1 * dropped.norm()


def test_the_gradient_through_the_solve_fades_with_the_weight_of_the_batch():
    features, labels = first_batch()
    ratios = []
    for steps in (1, 200):
        heads = [NearestETFHead(12, 5, implicit_gradient=gradient).double() for gradient in (True, False)]
        for head in heads:
            for _ in range(steps - 1):
                head(features.double(), labels)
        full, dropped = (gradient_of(head, features.double(), labels) for head in heads)
        ratios.append(float((full - dropped).norm() / dropped.norm()))
    assert ratios[1] < ratios[0] * 2.0 / 201 * 3


def test_equal_features_keep_the_initial_direction():
    head = NearestETFHead(12, 5, scale=5.0)
    initial = head.basis.clone()
    # Equal up to the last bit, in classes of different sizes: the means differ by rounding errors.
    features = (torch.randn(1, 12).repeat(35, 1) * (1 + 6e-8 * torch.randn(35, 12))).requires_grad_()
    logits = head(features, torch.repeat_interleave(torch.arange(5), torch.tensor([3, 5, 7, 9, 11])))
    logits.sum().backward()
    torch.testing.assert_close(head.basis, initial)
    torch.testing.assert_close(logits, torch.zeros(35, 5), rtol=0, atol=1e-5)
    assert torch.isfinite(features.grad).all()
    head(*first_batch())
    assert is_simplex_etf(head.weight)


def test_features_that_become_equal_keep_the_frame():
    head = NearestETFHead(12, 5, scale=5.0)
    for _ in range(3):
        head(*first_batch())
    before = head.weight.clone()
    head(torch.ones(20, 12), torch.arange(20) % 5)
    torch.testing.assert_close(head.weight, before, rtol=0, atol=1e-3)


@pytest.mark.parametrize("feature_dim", [5, 4])
def test_narrow_features(feature_dim):
    model = build("nearest-etf", feature_dim=feature_dim)
    train(model, batches(60))
    assert is_simplex_etf(model.head.weight)
    inputs, labels = next(batches(1, batch_size=200))
    assert (model.eval()(inputs).argmax(1) == labels).float().mean() > 0.9


def test_more_classes_than_samples_in_a_batch():
    model = build("nearest-etf", feature_dim=320, num_classes=300)
    seen = torch.zeros(300, dtype=torch.bool)
    for inputs, labels in batches(50, num_classes=300, batch_size=64):
        losses = train(model, [(inputs, labels)])
        seen[labels] = True
        assert math.isfinite(losses[0])
        assert torch.equal(model.head.class_means.seen, seen)
        assert not model.head.class_means.running[~seen].any()
    assert is_simplex_etf(model.head.weight)


def test_paper_defaults():
    head = NearestETFHead(12, 5)
    assert (head.proximal_weight, head.implicit_gradient, head.lagged) == (1e-3, True, False)
    assert torch.equal(head.basis, torch.eye(12, 5))
    assert "proximal_weight=0.001" in repr(head)
    assert not list(head.parameters())
