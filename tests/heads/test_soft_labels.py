"""Soft labels, ignored labels, and tokens, for every head."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from guided_collapse import NearestETFHead, RunningClassMeans
from tests.heads.cases import (
    ALL,
    HEADS,
    as_on_an_accelerator,
    assert_same_gradients,
    assert_same_state,
    batches,
    build,
    mixed,
    mixed_batches,
    partly_left_out,
)
from tests.heads.test_devices import AsOnAnAccelerator

ROUNDING = 1e-11

every_head = pytest.mark.parametrize("name", ALL)


@every_head
def test_one_hot_labels_equal_class_indices(name):
    model = build(name).double()
    twin, num_classes = copy.deepcopy(model), model.head.num_classes
    for inputs, labels in batches(5, num_classes=num_classes):
        # Zeros and ones are exact in half precision, too.
        logits = [model(inputs.double(), labels), twin(inputs.double(), one_hot(labels, num_classes).bfloat16())]
        torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=ROUNDING)
        for values in logits:
            cross_entropy(values, labels).backward()
    assert_same_gradients(twin, model, rtol=0, atol=ROUNDING)
    assert_same_state(twin, model, ROUNDING)


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_the_gradient_through_means_of_soft_labels(solver):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8, 4, generator=generator).double()
    features, shares = mixed(features, torch.arange(8) % 3, 3, torch.rand(8, 1, generator=generator).double())
    head = NearestETFHead(4, 3, solver=solver).double()
    head(features, shares)
    state = copy.deepcopy(head.state_dict())

    def loss(features):
        head.load_state_dict(state)
        return cross_entropy(head(features, shares), shares)

    assert torch.autograd.gradcheck(loss, (features.flip(0).requires_grad_(),))


@every_head
def test_ignored_samples_have_no_effect(name):
    model = build(name).double()
    twin = copy.deepcopy(model)
    for inputs, labels in partly_left_out(6, model.head.num_classes):
        if (labels == -100).all():
            continue
        inputs = inputs.double()
        known = labels != -100
        logits, expected = model(inputs, labels), twin(inputs[known], labels[known])
        torch.testing.assert_close(logits[known], expected, rtol=0, atol=ROUNDING)
        assert logits[~known].isfinite().all()
        cross_entropy(logits, labels).backward()
        cross_entropy(expected, labels[known]).backward()
    assert_same_gradients(twin, model, rtol=0, atol=ROUNDING)
    assert_same_state(model, twin, ROUNDING)


@pytest.mark.parametrize("name", [name for name in ALL if name != "cosine"])
@pytest.mark.parametrize("check_values", [True, False])
def test_a_batch_of_ignored_samples_changes_nothing(name, check_values):
    model, straight = build(name), build(name)
    if not check_values:
        as_on_an_accelerator(model.head)
        as_on_an_accelerator(straight.head)

    def state(model):
        # A cosine head renormalizes its rows in any case.
        return model.head.centering or model.head

    for inputs, labels in batches(3, num_classes=model.head.num_classes):
        before = copy.deepcopy(model)
        logits = model(inputs, torch.full_like(labels, -100))
        logits.square().sum().backward()
        assert logits.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        assert_same_state(state(model), state(before))
        model(inputs, labels)
        straight(inputs, labels)
    # Without checks, a tight frame may move at a different step.
    if check_values or name in HEADS:
        assert_same_state(state(model), state(straight))


@every_head
def test_tokens_are_samples(name):
    model = build(name)
    twin, num_classes = copy.deepcopy(model), model.head.num_classes
    (inputs, labels), (_, shares) = next(partly_left_out(1, num_classes)), next(mixed_batches(1, num_classes))
    for given in (labels, shares):
        logits = model(inputs.unflatten(0, (4, 5)), given.unflatten(0, (4, 5)))
        assert torch.equal(logits, twin(inputs, given).unflatten(0, (4, 5)))
    assert_same_state(model, twin)
    logits = model.eval()(inputs)
    exported = model.export()
    for shape in ((4, 5), (2, 2, 5), (1, 20)):
        torch.testing.assert_close(model(inputs.unflatten(0, shape)), logits.unflatten(0, shape))
        torch.testing.assert_close(exported(inputs.unflatten(0, shape)), logits.unflatten(0, shape), rtol=1e-5, atol=1e-5)
        assert model.points(inputs.unflatten(0, shape)).shape == (*shape, model.head.feature_dim)
    torch.testing.assert_close(model(inputs[3]), logits[3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_soft_labels_may_sum_to_one_within_rounding(dtype):
    shares = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)).to(dtype).softmax(dim=1)
    smoothed = (0.9 * one_hot(torch.arange(64), 1000) + 0.1 / 1000).to(dtype)
    for labels in (shares, smoothed):
        assert RunningClassMeans(3, 1000).update(torch.randn(64, 3), labels).centered_class_means.isfinite().all()


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "tight", "cosine-centered"])
def test_a_step_does_not_synchronize_with_the_device(name):
    head = as_on_an_accelerator(build(name).head)
    for steps in (mixed_batches, partly_left_out):
        labels = next(steps(1, head.num_classes))[1]
        features = torch.randn(4, 5, head.feature_dim, requires_grad=True)
        with AsOnAnAccelerator():
            logits = head(features, labels.unflatten(0, (4, 5)))
            cross_entropy(logits.flatten(0, 1), labels).backward()
        assert features.grad.isfinite().all()
