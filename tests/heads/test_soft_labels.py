"""Soft labels, labels to be left out, and tokens, for every head."""

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from guided_collapse import Classifier, Head, NearestETFHead, RunningClassMeans
from tests.heads.cases import FEATURE_DIM, HEADS, MANY_CLASSES, batches, build, mixed, mixed_batches, partly_left_out
from tests.heads.test_devices import AsOnAnAccelerator

ROUNDING = 1e-11

every_head = pytest.mark.parametrize("name", [*HEADS, *MANY_CLASSES])


def model_of(name):
    return build(name)


def state_of(module):
    """The buffers, as they are once the common factor of many means is in them."""
    module = copy.deepcopy(module)
    for part in module.modules():
        if isinstance(part, RunningClassMeans):
            part.value()
    return dict(module.named_buffers())


def assert_same_state(found, expected, tolerance=0.0):
    found, expected = state_of(found), state_of(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=tolerance)


def without_looks(head):
    """The head as on an accelerator."""
    for module in head.modules():
        if isinstance(module, Head | RunningClassMeans):
            module.check_values = False
    if isinstance(head, NearestETFHead):
        head.solver = "products"
    return head


class SlowSoftMeans:
    """The definition of the running means of soft labels, one sample and one class at a time, by numpy."""

    def __init__(self, num_classes, feature_dim):
        self.running, self.seen, self.steps = np.zeros((num_classes, feature_dim)), set(), 0

    def update(self, features, shares):
        batch, sizes, present = np.zeros_like(self.running), [], set()
        middle = sum(features) / len(features)
        for label in range(len(self.running)):
            count = sum(row[label] for row in shares)
            if count > 0:
                present.add(label)
                batch[label] = sum(row[label] * sample for row, sample in zip(shares, features, strict=True)) / count - middle
                sizes.append(np.sum(batch[label] ** 2))
        known = [np.sum(self.running[label] ** 2) for label in self.seen]
        for label in self.seen - present:
            batch[label] = self.running[label] * np.sqrt(np.mean(sizes) / np.mean(known))
        batch /= np.sqrt(np.sum(batch**2))
        self.steps += 1
        share = 2 / (self.steps + 1)
        for label in range(len(batch)):
            is_new = label in present and label not in self.seen
            before = batch[label] if is_new else self.running[label]
            self.running[label] = batch[label] if self.steps == 1 else share * batch[label] + (1 - share) * before
        self.seen |= present


def test_class_means_of_soft_labels_are_those_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    means, slow = RunningClassMeans(4, 9).double(), SlowSoftMeans(9, 4)
    smallest = 1.0
    for step in range(8):
        # More and more classes; rarely all of them, and some with less than one sample.
        labels = torch.randint(0, min(9, 3 + step), (6,), generator=generator)
        features, shares = mixed(torch.randn(6, 4, generator=generator), labels, 9, torch.rand(6, 1, generator=generator))
        features, shares = features.double(), shares.double()
        counts = shares.sum(dim=0)
        smallest = min(smallest, float(counts[counts > 0].min()))
        slow.update(features.numpy(), shares.numpy())
        updated = means.update(features, shares)
        torch.testing.assert_close(updated.centered_class_means, torch.from_numpy(slow.running), rtol=0, atol=ROUNDING)
        torch.testing.assert_close(updated.global_mean, features.mean(dim=0))
        assert set(means.seen.nonzero().flatten().tolist()) == slow.seen
    assert smallest < 0.5
    assert int(means.steps) == 8


def test_whole_numbers_with_one_hot_labels_give_the_bits_that_indices_give():
    generator = torch.Generator().manual_seed(0)
    by_index, by_share = RunningClassMeans(4, 9), RunningClassMeans(4, 9)
    for _ in range(5):
        # Sums of whole numbers, and the mean of 64 of them, are exact in any order.
        features = torch.randint(-50, 50, (64, 4), generator=generator).float()
        labels = torch.randint(0, 7, (64,), generator=generator)
        by_index.update(features, labels)
        by_share.update(features, one_hot(labels, 9).float())
    assert_same_state(by_share, by_index)


@every_head
def test_one_hot_labels_say_what_indices_do(name):
    model = model_of(name).double()
    twin, num_classes = copy.deepcopy(model), model.head.num_classes
    for inputs, labels in batches(5, num_classes=num_classes):
        # Zeros and ones are exact in half precision too.
        logits = [model(inputs.double(), labels), twin(inputs.double(), one_hot(labels, num_classes).bfloat16())]
        torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=ROUNDING)
        for values in logits:
            cross_entropy(values, labels).backward()
    for expected, parameter in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=ROUNDING)
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


@pytest.mark.thorough
def test_digits_with_mixup_reach_what_they_reach_without():
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    accuracies = []
    # A uniform share takes more epochs, as it does with nn.Linear.
    for alpha, epochs in ((None, 20), (0.2, 20), (1.0, 60)):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        model = Classifier(backbone, NearestETFHead(32, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs * 14)
        for _ in range(epochs):
            for chosen in torch.randperm(1400).split(100):
                inputs, targets = images[chosen], labels[chosen]
                if alpha is not None:
                    share = torch.distributions.Beta(alpha, alpha).sample()
                    inputs, targets = mixed(inputs, targets, 10, share)
                optimizer.zero_grad()
                cross_entropy(model(inputs, targets), targets).backward()
                optimizer.step()
                schedule.step()
        accuracies.append(float((model.eval()(images[1400:]).argmax(dim=1) == labels[1400:]).float().mean()))
    assert accuracies[0] > 0.92
    assert min(accuracies[1:]) > accuracies[0] - 0.01


@every_head
def test_samples_that_are_left_out_count_for_nothing(name):
    model = model_of(name).double()
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
    for expected, parameter in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=ROUNDING)
    assert_same_state(model, twin, ROUNDING)


@every_head
@pytest.mark.parametrize("looks", [True, False])
def test_a_batch_that_is_all_left_out_is_none(name, looks):
    model, straight = model_of(name), model_of(name)
    if not looks:
        without_looks(model.head), without_looks(straight.head)
    for inputs, labels in batches(3, num_classes=model.head.num_classes):
        before = copy.deepcopy(model.head)
        logits = model(inputs, torch.full_like(labels, -100))
        logits.square().sum().backward()
        assert logits.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        assert_same_state(model.head, before)
        model(inputs, labels)
        straight(inputs, labels)
    # Where nobody looks, a tight frame may move at another step.
    if looks or name in HEADS:
        assert_same_state(model.head, straight.head)


@every_head
def test_tokens_are_samples(name):
    model = model_of(name)
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


NEGATIVE = torch.tensor([[1.5, -0.5, 0.0, 0.0, 0.0]]).expand(2, 5)
REFUSED = {
    "multi-hot": ((2,), torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]]), r"sums from 1 to 2.*CosineHead"),
    "no class": ((2,), torch.eye(5)[:2] * torch.tensor([[1.0], [0.0]]), "sums from 0 to 1"),
    "negative": ((2,), NEGATIVE, "none negative.*smallest value of -0.5"),
    "NaN": ((2,), torch.full((2, 5), torch.nan), "sums from nan to nan"),
    "one for each token": ((2, 3), torch.zeros(2, dtype=torch.int64), r"features.shape\[:-1\] = \(2, 3\).*got \(2,\)"),
    "shares for each token": ((2, 3), torch.full((2, 5), 0.2), "class indices, int8 to int64 or uint8; got torch.float32"),
    "shares of too many": ((2, 3), torch.full((2, 3, 6), 1 / 6), r"= \(2, 3, 5\).*got \(2, 3, 6\)"),
    "whole numbers": ((2,), torch.eye(5)[:2].long(), "Convert one-hot labels to floating-point"),
    "no samples": ((2, 0), torch.zeros(2, 0, dtype=torch.int64), "at least one sample"),
    "no leading dimension": ((), torch.tensor(1), r"must be \(num_samples, feature_dim\).*got \(12,\)"),
}


@pytest.mark.parametrize("name", ["nearest-etf", "fixed-etf", "cosine"])
@pytest.mark.parametrize(("shape", "labels", "message"), REFUSED.values(), ids=REFUSED)
def test_labels_that_say_nothing_are_refused_before_any_state_changes(name, shape, labels, message):
    head = build(name).head
    before = copy.deepcopy(head)
    with pytest.raises((TypeError, ValueError), match=message):
        head(torch.ones(*shape, FEATURE_DIM), labels)
    assert_same_state(head, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_shares_sum_to_one_within_rounding(dtype):
    shares = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)).to(dtype).softmax(dim=1)
    smoothed = (0.9 * one_hot(torch.arange(64), 1000) + 0.1 / 1000).to(dtype)
    for labels in (shares, smoothed):
        assert RunningClassMeans(3, 1000).update(torch.randn(64, 3), labels).centered_class_means.isfinite().all()


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "tight", "cosine-centered"])
def test_a_step_waits_for_no_device(name):
    head = without_looks(model_of(name).head)
    for steps in (mixed_batches, partly_left_out):
        labels = next(steps(1, head.num_classes))[1]
        features = torch.randn(4, 5, head.feature_dim, requires_grad=True)
        with AsOnAnAccelerator():
            logits = head(features, labels.unflatten(0, (4, 5)))
            cross_entropy(logits.flatten(0, 1), labels).backward()
        assert features.grad.isfinite().all()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "steps"), [("nearest-etf", mixed_batches), ("tight", partly_left_out)])
def test_compiled_steps_agree_with_eager_ones(name, steps):
    eager = model_of(name).double()
    twin = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager_decomp_partition")
    for inputs, labels in steps(4, eager.head.num_classes):
        for model in (eager, compiled):
            logits = model(inputs.double().unflatten(0, (4, 5)), labels.unflatten(0, (4, 5)))
            logits.square().sum().backward()
    for expected, parameter in zip(eager.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-10)
    assert_same_state(twin, eager, ROUNDING)
