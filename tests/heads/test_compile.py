"""A whole training step in one compiled graph."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.heads.cases import assert_same_gradients, assert_same_state, batches, build, mixed_batches, partly_left_out

pytestmark = pytest.mark.thorough

EVERY_CLASS, MISSING_CLASSES = {"feature_dim": 32, "num_classes": 5}, {"feature_dim": 32, "num_classes": 30}
NAMES = ("nearest-etf", "nearest-etf-detached", "nearest-etf-lagged", "fixed-etf", "cosine-centered", "anchored-centered")
CASES = [
    *((name, sizes, {}) for name in NAMES for sizes in (EVERY_CLASS, MISSING_CLASSES)),
    ("nearest-etf-lagged", EVERY_CLASS, {"every": 2}),
    ("nearest-etf", EVERY_CLASS, {"solver": "products"}),
    ("tight", {}, {}),
    ("tight-not-lagged", {}, {}),
]


def compiled_twin(model, **options):
    torch._dynamo.reset()
    twin = copy.deepcopy(model)
    return twin, torch.compile(twin, fullgraph=True, **options)


# aot_eager traces, functionalizes and partitions the graph like inductor, without minutes of code generation.
AOT_EAGER = {"backend": "aot_eager_decomp_partition"}


@pytest.mark.parametrize(("name", "sizes", "options"), CASES)
def test_compiled_training_agrees_with_eager(name, sizes, options):
    eager = build(name, **sizes).double()
    for option, value in options.items():
        setattr(eager.head, option, value)
    twin, compiled = compiled_twin(eager, **AOT_EAGER)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (eager, twin)]
    steps = [(inputs.double(), labels) for inputs, labels in batches(5, num_classes=eager.head.num_classes)]
    for inputs, labels in steps[:-1]:
        for model, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            cross_entropy(model(inputs, labels), labels).backward()
        assert_same_gradients(twin, eager, rtol=1e-9, atol=1e-11)
        for optimizer in optimizers:
            optimizer.step()
    assert_same_state(twin, eager, 1e-11, rtol=1e-9)
    torch.testing.assert_close(compiled.eval()(inputs), eager.eval()(inputs), rtol=1e-9, atol=1e-11)
    # An eager step continues from compiled ones.
    for model in (eager, twin):
        model.train()(*steps[-1])
    assert_same_state(twin, eager, 1e-9)


@pytest.mark.parametrize(("name", "steps"), [("nearest-etf", mixed_batches), ("tight", partly_left_out)])
def test_soft_labels_and_tokens_agree_with_eager(name, steps):
    eager = build(name).double()
    twin, compiled = compiled_twin(eager, **AOT_EAGER)
    for inputs, labels in steps(4, eager.head.num_classes):
        for model in (eager, compiled):
            model(inputs.double().unflatten(0, (4, 5)), labels.unflatten(0, (4, 5))).square().sum().backward()
    assert_same_gradients(twin, eager, rtol=1e-9, atol=1e-10)
    assert_same_state(twin, eager, 1e-11)


def test_training_without_labels_in_one_graph():
    eager = build("fixed-etf")
    _, compiled = compiled_twin(eager, **AOT_EAGER)
    inputs, _ = next(batches(1))
    torch.testing.assert_close(compiled(inputs), eager(inputs))


@pytest.mark.parametrize("name", ["nearest-etf", "cosine"])
def test_inductor_agrees_with_eager(name):
    eager = build(name)
    twin, compiled = compiled_twin(eager)
    for inputs, labels in batches(3):
        for model in (eager, compiled):
            model.zero_grad()
            cross_entropy(model(inputs, labels), labels).backward()
        assert_same_gradients(twin, eager, rtol=1e-4, atol=1e-6)


def test_a_compiled_head_still_checks_batches():
    _, model = compiled_twin(build("nearest-etf"), backend="aot_eager")
    inputs, labels = next(batches(1))
    model(inputs, labels)
    with pytest.raises(ValueError, match="features must be finite"):
        model(inputs * torch.nan, labels)
    with pytest.raises(ValueError, match="labels must be from 0"):
        model(inputs, labels + 5)


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf"])
@pytest.mark.parametrize("compiled_first", [True, False])
def test_activation_checkpointing_around_a_compiled_head_is_refused(name, compiled_first):
    torch._dynamo.reset()
    head = build(name).head
    features, labels = torch.randn(10, 12, requires_grad=True), torch.arange(10) % 5

    def loss(head, features):
        return checkpoint(head, features, labels, use_reentrant=False).sum()

    if compiled_first:
        value = loss(torch.compile(head, backend="aot_eager"), features)
    else:
        value = torch.compile(loss, backend="aot_eager")(head, features)
    with pytest.raises(RuntimeError, match="outside activation checkpointing"):
        value.backward()
