"""What is declared once arrives everywhere: a head, a network, a data set and a metric that a module of a user's own adds."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.experiments.data.made_up import write_folders

ADDITION = """
from guided_collapse.experiments import backbones
from guided_collapse.experiments.data import known
from guided_collapse.experiments import heads
from guided_collapse.metrics import declared as metrics
from guided_collapse.metrics.declaration import MetricDeclaration

heads.declare(
    heads.HeadDeclaration("steady", "Steady ETF", "St", 4, "guided_collapse.heads.fixed:FixedETFHead", options={"center": False})
)
backbones.BACKBONES["shallow"] = backbones.BackboneDeclaration("addition:Shallow", ("in_channels", "affine", "feature_dim"))
MARGIN = "The smallest cosine margin of a sample.", "min over samples", "C/(C-1)"
MEAN = "The largest distance of a class mean from the global mean.", "max_c |mu_c - mu_G|", "that of all"
for metric in (
    MetricDeclaration(
        "farthest_mean", "farthest class mean", "means", *MEAN, log=True,
        charts={"train": "Farthest class mean"}, computed_by="addition:farthest_mean",
    ),
    MetricDeclaration(
        "least_margin", "smallest cosine margin", "samples", *MARGIN, needs=("weight", "samples"),
        splits=("train", "test"), computed_by="addition:least_margin",
    ),
):
    metrics.declare(metric)
known.KNOWN["patterns"] = known.KnownData(3, 8, 3, 18, 6, (0.5,) * 3, (0.25,) * 3)

from guided_collapse.experiments import presets  # after what it may name

presets.PRESETS["patterns-shallow"] = presets.Configuration(
    "patterns-shallow", data="patterns", backbone="shallow", batch_size=6, epochs=2
)


def farthest_mean(measured, samples):
    return measured.centered_class_means.norm(dim=1).max()


def least_margin(measured, samples):
    return samples.margins.min()


def __getattr__(name):
    if name != "Shallow":
        raise AttributeError(name)
    from guided_collapse.experiments.backbones.plain import SmallConvNet

    class Shallow(SmallConvNet):
        pass

    return Shallow
"""
# One process for all, because each takes seconds to load torch.
PROGRAM = """
import json
import sys
import addition
from guided_collapse.experiments.cli import main

for words in json.loads(sys.argv[1]):
    assert main(words) == 0
    print("---")

import torch
from guided_collapse import CollapseMetrics, measure_collapse

features, labels = torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 1])
whole = measure_collapse(features, labels, torch.eye(2), test_features=features, test_labels=labels)
stream = CollapseMetrics(2, 2)
stream.update(features, labels)
results = whole, measure_collapse(features, labels), stream.measure(torch.eye(2))
print(json.dumps([str(whole), *(result.to_dict() for result in results)]))
"""


class Printed(NamedTuple):
    """What a process prints to which the addition was made."""

    runs: Path
    listed: str
    compared: str
    measured: str


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> Printed:
    folder = tmp_path_factory.mktemp("declared")
    (folder / "addition.py").write_text(ADDITION)
    write_folders(folder / "data" / "patterns", num_per_class=6)
    flags = ("--heads", "steady", "--seeds", "0", "--accelerator", "cpu", "--quiet", "--data-root", str(folder / "data"))
    calls = [["list"], ["compare", "patterns-shallow", *flags, "--out", str(folder / "runs")]]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Printed(folder / "runs" / "patterns-shallow", *done.stdout.split("---\n"))


def test_a_head_a_network_and_a_data_set_are_each_one_declaration(printed):
    assert ["patterns-shallow", "patterns", "shallow,"] in [line.split()[:3] for line in printed.listed.splitlines()]
    assert "steady" in printed.listed
    assert "steady" in printed.compared
    facts = json.loads((printed.runs / "steady" / "seed-0" / "config.json").read_text())
    assert facts["configuration"]["backbone"] == "shallow"
    page = (printed.runs / "report" / "report.html").read_text()
    assert "steady" in page
    *_, last = (printed.runs / "steady" / "seed-0" / "metrics.jsonl").read_text().splitlines()
    record = json.loads(last)
    assert record["train"]["farthest_mean"] > 0
    assert "farthest_mean" not in record["test"]
    for split in ("train", "test"):
        assert record[split]["least_margin"] <= record[split]["mean_cosine_margin"]
    assert "<h4>Farthest class mean</h4>" in page
    assert "The largest distance of a class mean from the global mean." in page


def test_a_metric_is_one_declaration_and_a_formula(printed):
    table, whole, alone, stream = json.loads(printed.measured)
    assert f"means\n  {'farthest class mean':<40}{math.sqrt(4.5):>12.6g}" in table
    assert table.count(f"  {'smallest cosine margin':<40}{2:>12.6g}") == 2
    for found in (whole, alone, stream):
        assert found["farthest_mean"] == pytest.approx(math.sqrt(4.5))
    assert whole["least_margin"] == whole["test_least_margin"] == pytest.approx(2)
    assert alone["least_margin"] is None
    assert alone["left_out"]["least_margin"] == "needs the classifier's weight"
    assert alone["left_out"]["test_least_margin"] == "no test samples were given"
    assert stream["left_out"]["least_margin"].startswith("needs a second pass over the samples")
