"""The contract of every head."""

import copy
import inspect
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from guided_collapse import CosineHead, FixedETFHead, NearestETFHead
from guided_collapse.heads import HEAD_CLASSES
from guided_collapse.heads.checks import LABEL_TYPES
from tests.heads.cases import (
    ALL,
    FEATURE_DIM,
    HEADS,
    NUM_CLASSES,
    assert_same_gradients,
    assert_same_state,
    batches,
    build,
    train,
    trained_model,
)

every_head = pytest.mark.parametrize("name", HEADS)
every_head_and_tight = pytest.mark.parametrize("name", ALL)


def batches_for(model, num_steps):
    return batches(num_steps, num_classes=model.head.num_classes)


@pytest.fixture
def trained(name):
    return trained_model(name)


@every_head
def test_it_learns(name):
    model = build(name)
    inputs, labels = next(batches(1, batch_size=200))
    assert (model.eval()(inputs).argmax(1) == labels).float().mean() < 0.7
    train(model, batches(80))
    assert (model.eval()(inputs).argmax(1) == labels).float().mean() > 0.9


@every_head_and_tight
def test_weight_and_bias_reproduce_eval_mode(name, trained):
    head = trained.head
    features = torch.randn(7, head.feature_dim)
    points = features / features.norm(dim=1, keepdim=True)
    if name == "anchored-centered":
        points = (points - head.center) / (points - head.center).norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.embed(features), points)
    points = head.scale * points
    assert head.weight.shape == (head.num_classes, head.feature_dim)
    assert head.bias.shape == (head.num_classes,)
    torch.testing.assert_close(head(features), points @ head.weight.T + head.bias)


@every_head_and_tight
def test_evaluation_is_independent_of_the_batch_and_changes_no_state(name, trained):
    before = copy.deepcopy(trained)
    inputs, _ = next(batches(1, batch_size=64))
    together = trained(inputs)
    alone = torch.cat([trained(sample[None]) for sample in inputs])
    torch.testing.assert_close(alone, together, rtol=0, atol=2e-6)
    assert together.abs().max() > 0.1
    assert_same_state(trained, before)


@every_head_and_tight
def test_save_and_load_and_deepcopy_give_identical_logits(name, trained, tmp_path):
    inputs, _ = next(batches(1))
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    fresh = build(name)
    # The state must be complete.
    fresh.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    expected = trained(inputs)
    assert torch.equal(fresh.eval()(inputs), expected)
    assert torch.equal(copy.deepcopy(trained)(inputs), expected)
    torch.testing.assert_close(copy.deepcopy(trained).double()(inputs.double()).float(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(copy.deepcopy(trained).bfloat16()(inputs.bfloat16()).float(), expected, rtol=0.05, atol=0.2)


@every_head_and_tight
def test_the_scale_may_change_after_training(name, trained):
    inputs, _ = next(batches(1))
    before, expected = trained.head.scale, trained(inputs)
    trained.head.scale = 3 * before
    torch.testing.assert_close(trained(inputs), 3 * expected)


@every_head_and_tight
@pytest.mark.parametrize("taken", [3, 4])
def test_training_resumes_from_a_checkpoint_bit_for_bit(name, taken, tmp_path):
    straight, resumed = build(name), build(name)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (straight, resumed)]
    steps = list(batches_for(straight, 9))
    train(straight, steps[:taken], optimizers[0])
    torch.save([straight.state_dict(), optimizers[0].state_dict()], tmp_path / "last.pt")
    for part, state in zip((resumed, optimizers[1]), torch.load(tmp_path / "last.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    losses = [train(model, steps[taken:], optimizer) for model, optimizer in zip((straight, resumed), optimizers, strict=True)]
    assert losses[0] == losses[1]
    assert_same_state(resumed, straight)


@every_head_and_tight
def test_several_forward_passes_may_share_a_backward_pass(name):
    model = build(name).train()
    (first, first_labels), (second, second_labels) = batches_for(model, 2)
    (model(first, first_labels).square().sum() + model(second, second_labels).square().sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@every_head
@pytest.mark.parametrize("num_classes", [5, 30], ids=["all classes", "missing classes"])
def test_bfloat16_autocast(name, num_classes):
    model = build(name, feature_dim=32, num_classes=num_classes)
    reference = copy.deepcopy(model)
    for inputs, labels in batches(4, num_classes=num_classes):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(inputs, labels)
            nn.functional.cross_entropy(logits, labels).backward()
        assert logits.dtype == torch.float32
        exact = reference(inputs, labels)
    torch.testing.assert_close(logits, exact, rtol=0.05, atol=0.3)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert all(torch.isfinite(value.float()).all() for value in model.state_dict().values())


@every_head_and_tight
def test_state_keeps_its_precision_in_a_half_precision_model(name):
    model = build(name).bfloat16()
    for inputs, labels in batches_for(model, 30):
        logits = model(inputs.bfloat16(), labels)
    assert logits.dtype == torch.float32
    assert all(buffer.dtype == torch.float32 for buffer in model.head.buffers() if buffer.is_floating_point())
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    inputs, _ = next(batches(1))
    torch.testing.assert_close(model.export()(inputs.bfloat16()).float(), model.eval()(inputs.bfloat16()), rtol=0.05, atol=0.1)


@every_head_and_tight
def test_float64_features_give_float64_logits(name):
    head = build(name).head.double()
    features = torch.randn(10, head.feature_dim, dtype=torch.float64, requires_grad=True)
    logits = head(features, torch.arange(10) % head.num_classes)
    logits.sum().backward()
    assert logits.dtype == features.grad.dtype == torch.float64
    assert all(value.dtype == torch.float64 for value in head.state_dict().values() if value.is_floating_point())


ONES, CLASSES = torch.ones(2, FEATURE_DIM), torch.tensor([0, 1])
TOKENS = torch.ones(2, 3, FEATURE_DIM)
BAD_BATCHES = {
    "labels too large": (torch.ones(3, FEATURE_DIM), torch.tensor([0, 1, 5]), "num_classes - 1 = 4; got values from 0 to 5"),
    "labels negative": (torch.ones(3, FEATURE_DIM), torch.tensor([0, 1, -1]), "got values from -1 to 1"),
    "labels not integers": (ONES, torch.tensor([0.0, 1.0]), "int8 to int64 or uint8; got torch.float32"),
    "labels boolean": (ONES, torch.tensor([True, False]), "or uint8; got torch.bool"),
    "labels in a column": (ONES, torch.zeros(2, 1).long(), r"got \(2, 1\)\. Use labels\.squeeze\(-1\)"),
    "labels one-hot": (ONES, torch.eye(2, 5).long(), r"\(num_samples,\) = \(2,\).*got \(2, 5\).*Convert one-hot labels"),
    "labels too few": (torch.ones(3, FEATURE_DIM), CLASSES, r"= \(3,\).*got \(2,\)"),
    "labels not for each token": (TOKENS, CLASSES, r"features.shape\[:-1\] = \(2, 3\).*got \(2,\)"),
    "shares multi-hot": (ONES, torch.ones(2, 5), r"every row summing to 1.*sums from 5 to 5.*multi-label.*CosineHead"),
    "shares of no class": (ONES, torch.eye(2, 5) * torch.tensor([[1.0], [0.0]]), "sums from 0 to 1"),
    "shares negative": (ONES, torch.tensor([[1.5, -0.5, 0, 0, 0]] * 2), "nonnegative.*smallest value of -0.5"),
    "shares NaN": (ONES, torch.full((2, 5), torch.nan), "sums from nan to nan"),
    "shares of too few classes": (ONES, torch.full((2, 4), 0.25), r"= \(2, 5\), one row per sample.*got \(2, 4\)"),
    "shares of too many classes": (TOKENS, torch.full((2, 3, 6), 1 / 6), r"= \(2, 3, 5\).*got \(2, 3, 6\)"),
    "shares not for each token": (TOKENS, torch.full((2, 5), 0.2), "class indices, int8 to int64 or uint8; got torch.float32"),
    "features too wide": (torch.ones(2, 13), CLASSES, r"feature_dim=12; got \(2, 13\)"),
    "features not flat": (torch.ones(2, FEATURE_DIM, 1, 1), CLASSES, r"got \(2, 12, 1, 1\)"),
    "features of no batch": (ONES[0], torch.tensor(1), r"must be \(num_samples, feature_dim\).*got \(12,\)"),
    "features integer": (ONES.long(), CLASSES, "floating-point; got torch.int64"),
    "features NaN": (ONES * torch.nan, CLASSES, "finite; got 24 NaN or infinite entries of 24"),
    "features infinite": (ONES / 0, CLASSES, "features must be finite"),
    "features too large": (ONES * 1e20, CLASSES, "norm overflows; got 1.0e\\+20"),
    "features a list": (ONES.tolist(), CLASSES, "must be torch tensors; got list and Tensor"),
    "no samples": (ONES[:0], CLASSES[:0], "at least one sample; got none"),
    "no tokens": (TOKENS[:, :0], torch.zeros(2, 0, dtype=torch.int64), "at least one sample; got none"),
}


@every_head
@pytest.mark.parametrize(("features", "labels", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_an_invalid_batch_raises_before_any_state_changes(name, features, labels, message):
    head = build(name).head
    before = copy.deepcopy(head)
    with pytest.raises((TypeError, ValueError), match=message):
        head(features, labels)
    assert_same_state(head, before)


@every_head
def test_only_heads_that_classify_with_the_means_of_the_batch_need_labels(name):
    model, twin = build(name), build(name)
    if model.head.needs_labels:
        with pytest.raises(ValueError, match=r"labels are required in training mode by a head that follows class means; got None"):
            model(next(batches(1))[0])
    else:
        for inputs, labels in batches(4):
            assert torch.equal(model(inputs), twin(inputs, labels))
            if name == "nearest-etf-lagged":
                model.head.update(labels)
    assert_same_state(model, twin)


@every_head
def test_eval_mode_checks_features(name):
    head = build(name).head.eval()
    with pytest.raises(ValueError, match="feature_dim=12"):
        head(torch.ones(2, 3))
    with pytest.raises(ValueError, match="features must be finite"):
        head(torch.full((2, FEATURE_DIM), torch.nan))


BAD_OPTIONS = [
    ((8, 1), {}, r"num_classes must be at least 2.*num_classes=1"),
    ((8, 5.0), {}, r"num_classes must be an integer; got 5\.0"),
    ((0, 3), {}, "feature_dim must be at least 1; got feature_dim=0"),
    ((1, 2), {}, r"feature_dim must be at least 2, because a sphere.*feature_dim=1"),
    *(((8, 3), {"scale": scale}, f"scale must be positive and finite; got {scale}") for scale in (0.0, -1.0, math.inf, math.nan)),
    ((8, 3), {"scale": "5"}, "scale must be a number or None"),
    ((8, 3), {"direction": "north"}, "direction must be one of"),
    ((8, 3), {"proximal_weight": -0.1}, "proximal_weight must be nonnegative and finite; got -0.1"),
    ((8, 3), {"lagged": True, "every": 0}, "every must be at least 1; got every=0"),
    ((8, 3), {"lagged": True, "every": 2.0}, "every must be an integer"),
    ((8, 3), {"lagged": False, "every": 5}, "lagged=True"),
]


@pytest.mark.parametrize("kind", [NearestETFHead, FixedETFHead, CosineHead])
@pytest.mark.parametrize(("sizes", "options", "message"), BAD_OPTIONS)
def test_bad_options_are_refused(kind, sizes, options, message):
    if options.keys() <= inspect.signature(kind).parameters.keys():
        with pytest.raises((TypeError, ValueError), match=message):
            kind(*sizes, **options)


@every_head
def test_integer_labels_of_every_width(name):
    features, labels = torch.randn(10, FEATURE_DIM), torch.arange(10) % NUM_CLASSES
    logits = [build(name).head(features, labels.to(dtype)) for dtype in LABEL_TYPES]
    assert all(torch.equal(logits[0], other) for other in logits)


@every_head
def test_zero_features_stay_zero_and_get_no_gradient(name):
    # As from a blank image through layers with zero biases.
    head = build(name).head
    features = torch.randn(10, FEATURE_DIM)
    features[3] = 0.0
    leaf = features.requires_grad_()
    labels = torch.arange(10) % NUM_CLASSES
    nn.functional.cross_entropy(head(leaf, labels), labels).backward()
    assert torch.equal(leaf.grad[3], torch.zeros(FEATURE_DIM))
    assert 0 < leaf.grad.norm() < 100
    assert torch.isfinite(head.eval()(features)).all()


@every_head
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_around_a_head_is_refused(name, use_reentrant):
    head = build(name).head
    features, labels = torch.randn(10, FEATURE_DIM, requires_grad=True), torch.arange(10) % NUM_CLASSES
    logits = checkpoint(head, features, labels, use_reentrant=use_reentrant)
    before = copy.deepcopy(head)
    with pytest.raises(RuntimeError, match=r"activation checkpointing.*Checkpoint only the backbone"):
        logits.sum().backward()
    assert_same_state(head, before)


@every_head_and_tight
def test_the_backbone_may_be_checkpointed(name):
    plain = build(name)
    inputs, labels = next(batches_for(plain, 1))
    nn.functional.cross_entropy(plain(inputs, labels), labels).backward()
    twin = build(name)
    logits = twin.head(checkpoint(twin.backbone, inputs, use_reentrant=False), labels)
    nn.functional.cross_entropy(logits, labels).backward()
    assert_same_gradients(twin, plain, rtol=1.3e-6, atol=1e-5)


@every_head_and_tight
def test_evaluation_training_and_one_backward_for_both(name):
    # Semi-supervised: an additional loss on unlabeled samples, in eval mode.
    model = build(name)
    (unlabeled, _), (inputs, labels) = batches_for(model, 2)
    train(model, batches_for(model, 3))
    gradients = []
    for together in (True, False):
        twin = copy.deepcopy(model)
        consistency = twin.eval()(unlabeled).square().mean()
        if not together:
            consistency.backward()
        supervised = nn.functional.cross_entropy(twin.train()(inputs, labels), labels)
        (consistency + supervised if together else supervised).backward()
        gradients.append([parameter.grad for parameter in twin.parameters()])
    for together, apart in zip(*gradients, strict=True):
        torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("kind", [NearestETFHead, partial(NearestETFHead, lagged=True), FixedETFHead, CosineHead])
@pytest.mark.parametrize("options", [{}, {"direction": "random"}])
@pytest.mark.parametrize("sizes", [(12, 5), (6, 30)])
def test_reset_parameters_initializes_a_head_from_the_meta_device(kind, options, sizes):
    if kind is CosineHead:
        options = {"center": True}
    head = kind(*sizes, **options, device="meta").to_empty(device="cpu")
    for tensor in head.state_dict().values():
        tensor.fill_(7)
    for seed in (0, 1):
        head.reset_parameters(torch.Generator().manual_seed(seed))
        assert_same_state(head, kind(*sizes, **options, generator=torch.Generator().manual_seed(seed)))


def loss_by_functional_call(head, features):
    state = {name: tensor.clone() for name, tensor in (*head.named_parameters(), *head.named_buffers())}
    labels = torch.arange(len(features)) % NUM_CLASSES
    return torch.func.functional_call(head, state, (features, labels)).square().sum()


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-detached", "nearest-etf-lagged", "nearest-etf-random"])
def test_the_solver_by_factors_raises_under_torch_func(name):
    with pytest.raises(NotImplementedError, match=r"torch\.func.*torch\.autograd\.grad.*products"):
        torch.func.grad(partial(loss_by_functional_call, build(name).head))(torch.randn(10, FEATURE_DIM))


@pytest.mark.parametrize("name", ["fixed-etf", "cosine-centered"])
def test_other_heads_support_torch_func(name):
    head, features = build(name).head, torch.randn(10, FEATURE_DIM, requires_grad=True)
    found = torch.func.grad(partial(loss_by_functional_call, head))(features)
    expected = torch.autograd.grad(head(features, torch.arange(10) % NUM_CLASSES).square().sum(), features)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf", "cosine-centered"])
def test_a_training_batch_of_one_sample_warns(name):
    head = build(name).head
    with pytest.warns(UserWarning, match="one sample into zero.*drop_last=True"):
        logits = head(torch.randn(1, FEATURE_DIM), torch.tensor([0]))
    assert torch.equal(logits, torch.zeros_like(logits))


@every_head_and_tight
def test_a_head_can_be_rebuilt_from_its_config_on_any_device_and_in_any_dtype(name):
    head = build(name).head
    config = json.loads(json.dumps(head.config()))
    again = HEAD_CLASSES[type(head).__name__].from_config(**config, device="meta", dtype=torch.float64)
    assert type(again) is type(head)
    assert again.config() == head.config()
    assert (again.in_features, again.out_features) == (head.feature_dim, head.num_classes)
    floating = [tensor for tensor in again.state_dict().values() if tensor.is_floating_point()]
    assert all((tensor.dtype, tensor.device.type) == (torch.float64, "meta") for tensor in floating)


def test_sizes_may_be_numpy_integers():
    head = NearestETFHead(np.int64(FEATURE_DIM), np.int32(NUM_CLASSES))
    assert (type(head.feature_dim), type(head.num_classes)) == (int, int)
    assert f"feature_dim={FEATURE_DIM}, num_classes={NUM_CLASSES}" in repr(head)


@pytest.mark.parametrize("sizes", [(64, 10), (512, 100), (16, 60)])
def test_the_default_scale_leaves_the_right_class_nine_tenths(sizes):
    head = FixedETFHead(*sizes)
    weight = head.weight.double()
    logits = head.scale * weight @ weight.T  # features equal to the rows of their classes
    probability = logits.softmax(dim=1).diagonal().mean()
    assert float(probability) == pytest.approx(0.9, abs=0.002) if sizes[1] <= sizes[0] + 1 else float(probability) < 0.9


@pytest.mark.parametrize("head", [CosineHead(8, 3), FixedETFHead(8, 3, center=False), NearestETFHead(8, 3)], ids=repr)
def test_logits_can_be_modified_in_place(head):
    features, labels = torch.randn(6, 8, requires_grad=True), torch.arange(6) % 3
    start = copy.deepcopy(head)
    expected = torch.autograd.grad((2 * head(features, labels))[:, 0].sum(), features)
    torch.testing.assert_close(torch.autograd.grad(start(features, labels).mul_(2)[:, 0].sum(), features), expected)
