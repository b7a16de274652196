"""On devices without float64, everything is measured on the CPU, with the same results."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from guided_collapse import CollapseMetrics, measure_collapse
from guided_collapse.metrics import nc2

APPLE = torch.device("mps")


class AppleTensor(Tensor):
    """A tensor that claims to be on MPS and raises for float64, as do results computed from it, until `cpu()`."""

    @property
    def device(self):
        return APPLE

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            plain, options = tree_map_only(Tensor, lambda tensor: tensor.as_subclass(Tensor), (args, kwargs or {}))
            here = tree_map_only(torch.device, lambda _: torch.device("cpu"), (plain, options))
            result = func(*here[0], **here[1])
            tensors = [leaf for leaf in tree_leaves((plain, options, result)) if isinstance(leaf, Tensor)]
            if any(tensor.dtype == torch.float64 for tensor in tensors):
                raise TypeError(f"{func.__name__}: this device has no float64")
            if func is Tensor.cpu or (func is Tensor.to and torch.device("cpu") in plain):
                return result
            return tree_map_only(Tensor, lambda tensor: tensor.as_subclass(AppleTensor), result)


def on_apple(tensor):
    return tensor.as_subclass(AppleTensor)


def samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 4
    return torch.randn(60, 8, generator=generator) + labels[:, None], labels, torch.randn(4, 8, generator=generator), torch.ones(4)


def test_measure_collapse_without_float64():
    features, labels, weight, bias = samples()
    arguments = [on_apple(tensor) for tensor in (features, labels, weight, bias)]
    test = {"test_features": features[:20], "test_labels": labels[:20]}
    found = measure_collapse(*arguments, **{name: on_apple(value) for name, value in test.items()})
    assert found.to_dict() == measure_collapse(features, labels, weight, bias, **test).to_dict()
    assert nc2(on_apple(weight)) == nc2(weight)


@pytest.mark.parametrize("keep_features", [False, True])
def test_a_stream_without_float64(keep_features):
    features, labels, weight, bias = samples()
    results = []
    for place in (on_apple, lambda tensor: tensor):
        metrics = CollapseMetrics(8, 4, keep_features=keep_features)
        for part in (slice(0, 30), slice(30, 60)):
            metrics.update(place(features[part]), place(labels[part]))
        again = metrics.second_pass(place(weight), place(bias))
        again.update(place(features), place(labels))
        results.append(again.compute().to_dict())
    assert results[0] == results[1]


def test_the_state_stays_on_the_cpu(monkeypatch):
    """Meta tensors stand in for an absent device."""
    monkeypatch.setattr("guided_collapse.metrics.streaming.has_float64", lambda device: device.type != "meta")
    features, labels, *_ = samples()
    metrics = CollapseMetrics(8, 4).to("meta")
    assert {state.device.type for state in metrics.metric_state.values()} == {"cpu"}
    assert metrics.device.type == "cpu"
    metrics.update(features, labels)
    assert metrics.compute().num_samples == 60
    monkeypatch.undo()
    assert CollapseMetrics(8, 4).to("meta").scatter.device.type == "meta"
