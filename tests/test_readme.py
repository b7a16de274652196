"""The README's examples run as they are."""

import pytest
import torch

from tests.test_docs import ROOT, blocks

README = ROOT / "README.md"


def data():
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(10, 20, generator=generator)
    labels = torch.arange(400) % 10
    inputs = centers[labels] + 0.3 * torch.randn(400, 20, generator=generator)
    return [(inputs[start : start + 100], labels[start : start + 100]) for start in range(0, 400, 100)]


@pytest.fixture
def examples():
    """Returns the code of the blocks, and the names that it assumes."""
    torch.manual_seed(0)

    def network():
        layers = torch.nn.Sequential()
        layers.add_module("body", torch.nn.Linear(20, 16))
        layers.add_module("fc", torch.nn.Linear(16, 10))
        return layers

    given = {
        "loader": data() * 20,
        "network": network(),
        "classifier": network(),
        "features": torch.randn(60, 8),
        "weight": torch.randn(4, 8),
        "bias": torch.zeros(4),
    }
    return [compile(block["code"], "README.md", "exec") for block in blocks(README, "python")], given


def test_the_examples_of_training_run_and_what_is_exported_needs_no_library(examples):
    (train, replace, _), names = examples
    exec(train, names)
    assert (names["predictions"] == names["labels"]).float().mean() > 0.9
    assert not [module for module in names["plain"].modules() if "guided_collapse" in type(module).__module__]
    few = names["inputs"][:7]
    torch.testing.assert_close(names["plain"](few), names["model"](few), rtol=0, atol=1e-5)
    exec(replace, names)
    assert names["network"].fc is names["head"]
    assert names["network"].body.weight.grad.norm() > 0


def test_the_measurement_runs(examples, capsys):
    (*_, measure), names = examples
    names["labels"] = torch.arange(60) % 4
    exec(measure, names)
    printed = capsys.readouterr().out
    assert "NC1" in printed
    assert str(names["result"].nc1) in printed
