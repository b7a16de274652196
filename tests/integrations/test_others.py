"""pytorch-metric-learning's trainer with the head as a loss, and the block of the documentation that takes torchvision and timm."""

import re
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


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # its progress bar does
def test_the_head_as_a_loss_in_the_trainer_of_pytorch_metric_learning():
    torch.manual_seed(0)
    trunk, loss_of = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), NearestETFLoss(16, 10)
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


def test_the_block_that_takes_torchvision_and_timm_runs_but_for_the_download(monkeypatch):
    (block,) = re.findall(
        r"<!-- not run: needs torchvision and timm -->\n```python\n(.*?)```", TRAINING_LOOP.read_text(), re.DOTALL
    )
    resnet50, create_model = torchvision.models.resnet50, timm.create_model
    monkeypatch.setattr(torchvision.models, "resnet50", lambda weights: resnet50())
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **options: create_model(name, img_size=64, **options))
    names = {}
    exec(block, names)
    images, labels = torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 3])
    with names["head"].labels(labels):
        assert names["resnet"](images).shape == (4, 100)
    assert names["vit"](images).shape == (4, 100)
    names["vit"].head.update(labels)
