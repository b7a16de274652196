"""The README's examples run as they are."""

import torch

from tests.test_docs import ROOT, blocks


def test_the_example_runs_and_what_it_saves_needs_no_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(10, 20, generator=generator)
    labels = torch.arange(400) % 10
    inputs = centers[labels] + 0.3 * torch.randn(400, 20, generator=generator)
    loader = [(inputs[start : start + 100], labels[start : start + 100]) for start in range(0, 400, 100)] * 20
    example, _ = (block["code"] for block in blocks(ROOT / "README.md", "python"))
    names = {"loader": loader}
    exec(compile(example, "README.md", "exec"), names)
    assert (names["predictions"] == names["labels"]).float().mean() > 0.9
    saved = torch.export.load(tmp_path / "model.pt2")
    assert not [node.target for node in saved.graph.nodes if "guided_collapse" in str(node.target)]
    few = names["inputs"][:7]
    torch.testing.assert_close(saved.module()(few), names["model"](few), rtol=0, atol=1e-5)


def test_the_measurement_runs(capsys):
    features, labels = torch.randn(60, 8), torch.arange(60) % 4
    network = torch.nn.Sequential()
    network.add_module("body", torch.nn.Linear(5, 8))
    network.add_module("fc", torch.nn.Linear(8, 4))
    names = {
        "features": features,
        "labels": labels,
        "weight": torch.randn(4, 8),
        "bias": torch.zeros(4),
        "network": network,
        "loader": [(torch.randn(30, 5), labels[:30]), (torch.randn(30, 5), labels[30:])],
    }
    _, example = (block["code"] for block in blocks(ROOT / "README.md", "python"))
    exec(compile(example, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "NC1" in printed
    assert str(names["result"].nc1) in printed
