"""State stays in float32 or wider, however a head is created, moved or loaded."""

import copy

import pytest
import torch

from guided_collapse import RunningClassMeans
from tests.heads.cases import FEATURE_DIM, HEADS, NUM_CLASSES, build

every_head = pytest.mark.parametrize("name", HEADS)
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def floating_buffers(module):
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


@half
@every_head
def test_a_head_created_under_a_half_default_dtype_learns_like_one_under_float32(name, dtype):
    twin, before = build(name).head, torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        head = build(name).head
        for key, value in floating_buffers(twin).items():
            assert torch.equal(floating_buffers(head)[key], value), key
        head.load_state_dict(twin.state_dict())
        advance(head, twin)
        for features, labels in feature_batches(dtype):
            head(features, labels)
            twin(features.float(), labels)
    finally:
        torch.set_default_dtype(before)
    for key, value in floating_buffers(twin).items():
        torch.testing.assert_close(floating_buffers(head)[key], value, rtol=0, atol=1e-5)


def cast_by_assignment(head, dtype):
    """Replaces every tensor, as loaders of other libraries do, cast to the requested dtype."""
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
@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf", "cosine-centered"])
def test_training_continues_after_integer_and_boolean_state_is_cast(name, dtype, cast):
    head, twin = build(name).head, build(name).head
    steps = list(feature_batches(torch.float32))[:3]
    for module in (head, twin):
        module(*steps[0])
    cast(head, dtype)
    if cast is not cast_in_place:
        assert [buffer.dtype for buffer in head.buffers()] == [buffer.dtype for buffer in twin.buffers()]
    for features, labels in steps[1:]:
        logits, expected = head(features, labels), twin(features, labels)
    # Casting rounded the state once.
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
    # The weight of one batch is far below the rounding unit of float32.
    assert 0 < (wide.running - before).abs().max() < 1e-4


def advance(*modules):
    """Makes the weight of a batch in the running means so small that half precision would round it away."""
    for buffer in (buffer for module in modules for name, buffer in module.named_buffers() if name.endswith("steps")):
        buffer.fill_(2000)


def feature_batches(dtype):
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(NUM_CLASSES, FEATURE_DIM, generator=generator, dtype=torch.float32)
    labels = torch.arange(20) % NUM_CLASSES
    for _ in range(60):
        yield (centers[labels] + 0.1 * torch.randn(20, FEATURE_DIM, generator=generator, dtype=torch.float32)).to(dtype), labels
