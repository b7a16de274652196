"""A whole training step in one compiled graph."""

import ast
import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import guided_collapse
from tests.heads.cases import batches, build

pytestmark = pytest.mark.thorough

NAMES = ["nearest-etf", "nearest-etf-detached", "nearest-etf-lagged", "fixed-etf", "cosine-centered"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_classes", [5, 30], ids=["all classes", "missing classes"])
def test_compiled_training_agrees_with_eager(name, num_classes):
    eager = build(name, feature_dim=32, num_classes=num_classes).double()
    twin = copy.deepcopy(eager)
    torch._dynamo.reset()
    # aot_eager traces, functionalises and partitions the graph as inductor does, without its minutes of code generation.
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager_decomp_partition")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (eager, twin)]
    for inputs, labels in batches(4, num_classes=num_classes):
        for model, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs.double(), labels), labels).backward()
        for expected, parameter in zip(eager.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-11)
        for optimizer in optimizers:
            optimizer.step()
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[key], value, rtol=1e-9, atol=1e-11)
    inputs = next(batches(1))[0].double()
    torch.testing.assert_close(compiled.eval()(inputs), eager.eval()(inputs), rtol=1e-9, atol=1e-11)


def test_no_type_is_asked_for_by_a_union():
    # torch 2.6 to 2.9 cannot trace `isinstance(value, A | B)`, and the torch of these tests can.
    found = []
    for file in (Path(guided_collapse.__file__).parent / "heads").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "isinstance" and isinstance(call.args[1], ast.BinOp):
                found.append(f"{file.name}:{call.lineno}")
    assert found == []


def test_training_without_labels_in_one_graph():
    torch._dynamo.reset()
    eager, twin = build("fixed-etf"), build("fixed-etf")
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager_decomp_partition")
    inputs, _ = next(batches(1))
    torch.testing.assert_close(compiled(inputs), eager(inputs))


@pytest.mark.parametrize("name", ["nearest-etf", "cosine"])
def test_inductor_agrees_with_eager(name):
    eager = build(name)
    twin = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(twin, fullgraph=True)
    for inputs, labels in batches(3):
        for model in (eager, compiled):
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs, labels), labels).backward()
        for expected, parameter in zip(eager.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_a_compiled_head_still_refuses_bad_batches():
    torch._dynamo.reset()
    model = torch.compile(build("nearest-etf"), fullgraph=True, backend="aot_eager")
    inputs, labels = next(batches(1))
    model(inputs, labels)
    with pytest.raises(ValueError, match="features must be finite"):
        model(inputs * torch.nan, labels)
    with pytest.raises(ValueError, match="labels must be in 0"):
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
