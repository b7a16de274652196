"""State that keeps float32 or more, however a head was made, moved or loaded."""

import contextlib
import copy

import pytest
import torch

from guided_collapse import RunningClassMeans
from guided_collapse.geometry.simplex import frame_basis
from tests.heads.cases import FEATURE_DIM, HEADS, NUM_CLASSES, build

every_head = pytest.mark.parametrize("name", HEADS)
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def floating_buffers(module):
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


@half
@every_head
def test_a_head_made_under_a_half_default_dtype_is_the_one_made_under_float32(name, dtype):
    with default_dtype(dtype):
        made = floating_buffers(build(name).head)
    for key, value in floating_buffers(build(name).head).items():
        assert torch.equal(made[key], value), key


@half
@every_head
def test_a_head_made_under_a_half_default_dtype_learns_what_one_under_float32_does(name, dtype):
    twin = build(name).head
    with default_dtype(dtype):
        head = build(name).head
        head.load_state_dict(twin.state_dict())
        advance(head, twin)
        for features, labels in feature_batches(dtype):
            head(features, labels)
            twin(features.float(), labels)
    for key, value in floating_buffers(twin).items():
        torch.testing.assert_close(floating_buffers(head)[key], value, rtol=0, atol=1e-5)


@half
def test_running_means_follow_half_precision_features(dtype):
    means, exact = RunningClassMeans(FEATURE_DIM, NUM_CLASSES), RunningClassMeans(FEATURE_DIM, NUM_CLASSES).double()
    advance(means, exact)
    for features, labels in feature_batches(dtype):
        means.update(features, labels)
        exact.update(features.double(), labels)
    assert means.running.dtype == torch.float32
    torch.testing.assert_close(means.running.double(), exact.running, rtol=0, atol=1e-6)


@half
@every_head
def test_a_half_checkpoint_that_is_assigned_does_not_freeze_the_state(name, dtype):
    head = build(name).head
    checkpoint = {key: value.to(dtype) if value.is_floating_point() else value for key, value in head.state_dict().items()}
    head.load_state_dict(checkpoint, assign=True)
    assert all(buffer.dtype == torch.float32 for buffer in floating_buffers(head).values())
    assert all(parameter.dtype == dtype for parameter in head.parameters())


def cast_by_assignment(head, dtype):
    """As loaders of other libraries put every tensor in place in the type that they were asked for."""
    for module in head.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            loaded = buffer.to(dtype)
            loaded.is_loaded = True
            setattr(module, name, loaded)
            assert getattr(module, name).is_loaded


def cast_by_loading(head, dtype):
    head.load_state_dict({name: value.to(dtype) for name, value in head.state_dict().items()}, assign=True)


def cast_by_applying(head, dtype):
    head._apply(lambda tensor: tensor.to(dtype))


def cast_in_place(head, dtype):
    for buffer in head.buffers():
        if not buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


@pytest.mark.parametrize("cast", [cast_by_assignment, cast_by_loading, cast_by_applying, cast_in_place])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf"])
def test_counts_and_marks_that_are_cast_do_not_stop_training(name, dtype, cast):
    head, twin = build(name).head, build(name).head
    steps = list(feature_batches(torch.float32))[:3]
    for module in (head, twin):
        module(*steps[0])
    cast(head, dtype)
    types = {key: value.dtype for key, value in head.state_dict().items()}
    if cast is not cast_in_place:
        assert types == {key: value.dtype for key, value in twin.state_dict().items()}
    for features, labels in steps[1:]:
        logits, expected = head(features, labels), twin(features, labels)
    # Half precision has rounded the state once.
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.5)


def test_float64_state_is_not_rounded_by_float32_features():
    wide, features = RunningClassMeans(4, 3).double(), torch.randn(9, 4)
    exact = copy.deepcopy(wide)
    for shift in range(5):
        wide.update(features.roll(shift, 0), torch.arange(9) % 3)
        exact.update(features.roll(shift, 0).double(), torch.arange(9) % 3)
    torch.testing.assert_close(wide.running, exact.running, rtol=0, atol=1e-7)
    before = wide.running.clone()
    wide.global_mean.steps.fill_(10**9)
    wide.update(features, torch.arange(9) % 3)
    # The share of one batch is far below float32's rounding of the state.
    assert 0 < (wide.running - before).abs().max() < 1e-4


@half
def test_a_random_direction_in_half_precision_is_a_rounded_one_in_float32(dtype):
    exact = frame_basis(6, 4, direction="random", generator=torch.Generator().manual_seed(0))
    rounded = frame_basis(6, 4, direction="random", generator=torch.Generator().manual_seed(0), dtype=dtype)
    assert torch.equal(rounded, exact.to(dtype))


def advance(*modules):
    """Makes the share of a batch in the running means so small that half precision would round it away."""
    for buffer in (buffer for module in modules for name, buffer in module.named_buffers() if name.endswith("steps")):
        buffer.fill_(2000)


def feature_batches(dtype):
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(NUM_CLASSES, FEATURE_DIM, generator=generator, dtype=torch.float32)
    labels = torch.arange(20) % NUM_CLASSES
    for _ in range(60):
        yield (centers[labels] + 0.1 * torch.randn(20, FEATURE_DIM, generator=generator, dtype=torch.float32)).to(dtype), labels
