"""Other trainers with the head in them, and the blocks of the documentation that take torchvision, timm or several processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import nn
from torch.utils.data import TensorDataset

from guided_collapse import NearestETFLoss
from tests.integrations.trainers import INPUTS, LABELS

pytestmark = pytest.mark.integrations

TRAINING_LOOP = Path(__file__).parents[2] / "docs" / "training-loop.md"
COMING_FROM = TRAINING_LOOP.with_name("coming-from.md")


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # its progress bar does
def test_the_head_as_a_loss_in_the_trainer_of_pytorch_metric_learning():
    torch.manual_seed(0)
    trunk, loss_of = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), NearestETFLoss(10, 16)
    trainer = MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.AdamW(trunk.parameters(), lr=3e-3)},
        batch_size=50,
        loss_funcs={"metric_loss": loss_of},
        dataset=TensorDataset(INPUTS, LABELS),
        data_device="cpu",
        dataloader_num_workers=0,
        set_min_label_to_zero=False,
    )
    trainer.train(num_epochs=15)
    with torch.no_grad():
        predictions = loss_of.get_logits(trunk(INPUTS)).argmax(dim=1)
    assert (predictions == LABELS).float().mean() > 0.9
    assert int(loss_of.head.class_means.steps) == 15 * 6


def test_the_cosine_head_has_the_logits_of_normalized_softmax_as_the_page_says():
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", COMING_FROM.read_text(), re.DOTALL)
    for code in blocks:
        exec(code, names)
    assert "NormalizedSoftmaxLoss" in blocks[-1]
    assert names["embeddings"].shape == names["features"].shape


# The documentation's network but for batch normalization, which sees half of the batch in each of two processes.
NETWORK = """
def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
"""
SAVE = """
state = accelerator.unwrap_model(accelerated).state_dict()
torch.save({"state": state, "accuracy": accuracy, "processes": accelerator.num_processes}, f"rank-{accelerator.process_index}.pt")
# A process group that DDP still holds when Python exits can abort the process.
import gc
del accelerated, optimizer, loss, state
accelerator.free_memory()
gc.collect()
accelerator.end_training()
"""


def block(beginning):
    """Returns the block of the page with this beginning."""
    found = re.findall(r"```python\n(.*?)```", TRAINING_LOOP.read_text(), re.DOTALL)
    (code,) = [code for code in found if code.startswith(beginning)]
    return code


def test_the_block_for_accelerate_trains_in_two_processes_as_in_one(tmp_path):
    script = "\n".join([block("import torch\nfrom sklearn"), NETWORK, block("from accelerate"), SAVE])
    (tmp_path / "train.py").write_text(script)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    results = []
    for name, launcher in (("alone", []), ("together", launch)):
        folder = tmp_path / name
        folder.mkdir()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *launcher, "../train.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        results += [torch.load(file, weights_only=True) for file in sorted(folder.glob("rank-*.pt"))]
    alone, first, second = results
    assert [result["processes"] for result in results] == [1, 2, 2]
    assert alone["accuracy"] > 0.85
    for key, value in alone["state"].items():
        torch.testing.assert_close(first["state"][key], value, rtol=0, atol=1e-3)
        assert torch.equal(second["state"][key], first["state"][key]), key


def test_the_block_for_timm_trains_with_its_mixup_and_averaged_weights():
    names = {}
    for beginning in (
        "import torch\nfrom sklearn",
        "from guided_collapse import replace_classifier",
        "import timm\nfrom timm.data",
    ):
        exec(block(beginning), names)
    assert names["accuracy"] > 0.9
    head = names["averaged"].module.get_classifier()
    cosines = (head.weight @ head.weight.T)[~torch.eye(10, dtype=torch.bool)]
    torch.testing.assert_close(cosines, torch.full_like(cosines, -1 / 9), rtol=0, atol=1e-4)
    assert int(head.class_means.steps) == int(names["head"].class_means.steps) + len(names["loader"])


def test_the_block_for_a_replaced_layer_saves_and_loads_by_the_methods_of_transformers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec("from guided_collapse import Head, replace_classifier", names)
    for beginning in ("import torch\nfrom sklearn", "from transformers import ViTConfig"):
        exec(block(beginning), names)
    images, labels = names["images"][:50], names["labels"][:50]
    before, after = names["vit"], names["loaded_vit"]
    assert int(after.classifier.class_means.steps) == 1
    for key, value in before.state_dict().items():
        assert torch.equal(after.state_dict()[key], value), key
    with after.train().classifier.labels(labels):
        after(images).logits.square().sum().backward()
    assert int(after.classifier.class_means.steps) == 2


def test_the_block_that_takes_torchvision_and_timm_runs_but_for_the_download(monkeypatch):
    resnet50, create_model = torchvision.models.resnet50, timm.create_model
    monkeypatch.setattr(torchvision.models, "resnet50", lambda weights: resnet50())
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **options: create_model(name, img_size=64, **options))
    names = {}
    exec(block("import timm\nimport torchvision"), names)
    images, labels = torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 3])
    with names["head"].labels(labels):
        assert names["resnet"](images).shape == (4, 100)
    assert names["vit"](images).shape == (4, 100)
    names["vit"].head.update(labels)
