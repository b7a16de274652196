"""Models of timm as backbones: trained by the command on folders of images, killed, resumed, exported, and turned into features."""

import os
import signal
import subprocess
import sys

import huggingface_hub
import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.backbones.pretrained import with_synchronized_batch_norm
from guided_collapse.experiments.cli import main
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.data.features import load_features
from guided_collapse.experiments.export import trained_model
from guided_collapse.experiments.loop import build_optimizer
from guided_collapse.experiments.run import RunFolder, configuration_of
from guided_collapse.experiments.tasks import build_model, build_task
from tests.experiments.data.made_up import write_folders
from tests.experiments.runs import assert_same

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")]

# Of the first, `head_hidden_size` is 1280 and `num_features` 960; the second has a position for each patch of its 160 x 160 pixels.
MODELS = ["mobilenetv4_conv_small_035", "test_vit", "test_resnet"]
QUICK = ["--image-size", "32", "--quiet", "--accelerator", "cpu", "--batch-size", "8"]
# Ends its own process, as the kernel would, after the training of the second epoch and before that is saved.
KILLED = """
import os, signal, sys
from guided_collapse.experiments import loop
from guided_collapse.experiments.cli import main
def killed(training, epoch, *others, train_epoch=loop.Training.train_epoch):
    record = train_epoch(training, epoch, *others)
    if epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return record
loop.Training.train_epoch = killed
main(sys.argv[1:])
"""


@pytest.fixture
def images(tmp_path):
    return write_folders(tmp_path / "images", num_per_class=8, parts=("",))


@pytest.fixture
def weights(tmp_path):
    """Writes weights of a timm model with a classifier of seven classes, and returns their file."""

    def written(model):
        save_file(timm.create_model(model, num_classes=7).state_dict(), tmp_path / f"{model}.safetensors")
        return f"{tmp_path / model}.safetensors"

    return written


def refusal(words, capsys):
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("model", MODELS)
def test_trained_killed_resumed_and_exported(model, images, weights, tmp_path):
    words = ["train", "--data", f"{images}", "--backbone", f"timm:{model}", "--weights", weights(model), *QUICK]
    words += ["--epochs", "3", "--experiment", "pets"]
    whole, run = (RunFolder(tmp_path / name / "pets" / "nearest-etf" / "seed-0") for name in ("whole", "killed"))
    assert main([*words, "--out", f"{tmp_path / 'whole'}"]) == 0
    command = [sys.executable, "-c", KILLED, *words, "--out", f"{tmp_path / 'killed'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    (tmp_path / f"{model}.safetensors").unlink()  # a resumed run has its weights from the checkpoint
    assert main(["resume", f"{run.path}", "--quiet", "--accelerator", "cpu"]) == 0
    assert_same(whole, run)

    assert main(["export", f"{run.path}", "--to", f"{tmp_path / 'model.onnx'}"]) == 0
    task = build_task(configuration_of(run.facts()))
    inputs = next(iter(task.clean_batches(ProcessShare(), test=True))).inputs
    with torch.no_grad():
        logits = trained_model(run)(inputs).numpy()
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    pixels = task.data.test.images[: len(inputs)].float().numpy() / 255
    np.testing.assert_allclose(session.run(["logits"], {"images": pixels})[0], logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_features_are_those_of_timm(model, weights):
    file = weights(model)
    reference = timm.create_model(model, num_classes=7)
    reference.load_state_dict(load_file(file))
    size = reference.pretrained_cfg["input_size"][1]
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        expected = reference.eval().forward_head(reference.forward_features(images), pre_logits=True)
        backbone = build_backbone(f"timm:{model}", weights=file).eval()
        torch.testing.assert_close(backbone(images), expected, rtol=0, atol=0)
    assert backbone.feature_dim == reference.head_hidden_size


def test_a_transformer_keeps_its_loaded_positions_at_another_size(weights):
    file = weights("test_vit")
    backbone = build_backbone("timm:test_vit", weights=file, image_size=64)
    own = load_file(file)["pos_embed"]
    assert backbone.model.pos_embed.shape[1] == 1 + (64 // 16) ** 2 < own.shape[1]
    assert torch.equal(backbone.model.pos_embed[:, 0], own[:, 0])
    torch.testing.assert_close(backbone.model.pos_embed[:, 1:].mean(), own[:, 1:].mean(), rtol=0.2, atol=1e-3)


@pytest.mark.parametrize("model", ["test_vit", "test_convnext"])
def test_a_size_that_a_model_cannot_take_is_refused_before_training(model, images, tmp_path, capsys):
    words = ["train", "--data", f"{images}", "--backbone", f"timm:{model}", "--image-size", "9", "--out", f"{tmp_path / 'runs'}"]
    assert "Choose another --image-size; the model's own is 160" in refusal(words, capsys)
    assert not (tmp_path / "runs").exists()


def test_weights_that_do_not_fit_and_unknown_models_are_refused(images, weights, tmp_path, capsys):
    out = ["--out", f"{tmp_path / 'runs'}"]
    words = ["train", "--data", f"{images}", *QUICK, *out, "--weights", weights("test_resnet"), "--backbone"]
    message = refusal([*words, "timm:test_vit"], capsys)
    assert "it lacks cls_token, pos_embed, patch_embed.proj.weight" in message
    assert "it also has bn1.bias" in message
    assert "conv1.0.weight" in refusal([*words, "timm:resnet18d"], capsys)
    narrow = {name: value[:1] for name, value in load_file(weights("test_resnet")).items() if value.ndim == 4}
    save_file(load_file(weights("test_resnet")) | narrow, tmp_path / "test_resnet.safetensors")
    assert "conv1.0.weight of shape (1, " in refusal([*words, "timm:test_resnet"], capsys)
    assert "Did you mean resnet18" in refusal([*words, "timm:resnet1"], capsys)
    assert not (tmp_path / "runs").exists()


def test_without_a_connection_pretrained_weights_are_refused_with_the_way_out(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", f"{tmp_path / 'cache'}")
    words = ["--data", f"{images}", "--backbone", "timm:test_resnet", "--pretrained", "--out", f"{tmp_path / 'runs'}"]
    for command in (["train"], ["compare"], ["search", "--grid", "learning_rate=0.001"]):
        assert "Without a connection, use --weights FILE" in refusal([*command, *words], capsys)
    assert not list(tmp_path.glob("runs/**/config.json"))


def write_odd_folder(folder, kind):
    """8 x 8 pixels; files with and without colors and transparency; two classes of three images."""
    size, modes, num_classes, number = {
        "8 x 8": (8, ["RGB"], 3, 6),
        "mixed": (20, ["RGBA", "L", "LA", "P", "RGB", "1"], 3, 6),
        "two classes": (40, ["RGB"], 2, 3),
    }[kind]
    pixels = np.random.default_rng(0).integers(0, 256, (num_classes * number, size, size, 3), dtype=np.uint8)
    for index, values in enumerate(pixels):
        file = folder / f"class {index % num_classes}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).convert(modes[index // num_classes % len(modes)]).save(file)
    return folder


@pytest.mark.parametrize("kind", ["8 x 8", "mixed", "two classes"])
@pytest.mark.parametrize("model", ["test_vit", "test_resnet"])
def test_odd_folders_are_trained_on(kind, model, tmp_path):
    folder = write_odd_folder(tmp_path / "images", kind)
    words = [
        "train",
        "--data",
        f"{folder}",
        "--backbone",
        f"timm:{model}",
        "--epochs",
        "1",
        *QUICK,
        "--out",
        f"{tmp_path / 'runs'}",
    ]
    assert main(words) == 0


def configured(**changes):
    given = {"data": "digits", "backbone": "timm:test_resnet", "image_size": 32, "optimizer": "adamw", "head": "linear"}
    return Configuration("c", **given | changes)


def trained_one_step(configuration):
    """What changes in a model when it is trained for a step: names of parameters and buffers."""
    model = build_model(configuration, build_task(configuration), torch.device("cpu"))
    optimizer = build_optimizer(configuration, model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images, labels = torch.rand(8, 3, 32, 32), torch.arange(8)
    nn.functional.cross_entropy(model.train()(images), labels).backward()
    optimizer.step()
    return model, optimizer, {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def test_what_is_frozen_stays_as_it_is():
    _, _, changed = trained_one_step(configured(freeze=True, neck="linear", feature_dim=16))
    assert {name.split(".")[1] for name in changed if name.startswith("backbone.")} == {"neck"}
    model, _, changed = trained_one_step(configured(freeze_batch_norm=True))
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert not [name for name in changed if name.rpartition(".")[0] in norms]
    assert "backbone.model.conv1.0.weight" in changed
    _, _, changed = trained_one_step(configured())
    assert {f"{name}.running_mean" for name in norms} <= changed


def test_synchronized_batch_norm_computes_the_same_and_stays_frozen():
    # The layers of this model contain their activations.
    network = build_backbone("timm:test_efficientnet", image_size=32, freeze_batch_norm=True, neck="linear").eval()
    images = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        expected = network(images)
        converted = with_synchronized_batch_norm(nn.ModuleList([network]))[0]
        torch.testing.assert_close(converted(images), expected)
    norms = [module for module in converted.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert norms
    converted.train()
    assert not any(norm.training or norm.weight.requires_grad for norm in norms)


def test_the_backbone_may_learn_more_slowly():
    model, optimizer, _ = trained_one_step(configured(backbone_rate=0.25, neck="mlp"))
    rates = {id(parameter): group.get("rate", 1.0) for group in optimizer.param_groups for parameter in group["params"]}
    found = {name: rates[id(parameter)] for name, parameter in model.named_parameters()}
    assert {rate for name, rate in found.items() if name.startswith("backbone.model.")} == {0.25}
    assert {rate for name, rate in found.items() if not name.startswith("backbone.model.")} == {1.0}


def test_images_are_scaled_and_normalized_as_the_model_expects():
    facts = build_task(configured(backbone="timm:resnet18", image_size=None, images_per_class=1)).input_facts()
    declared = timm.get_pretrained_cfg("resnet18")
    assert facts.shape == declared.input_size
    assert (facts.mean, facts.std) == (tuple(declared.mean), tuple(declared.std))
    assert facts.mean != facts.std


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_features_of_a_network_are_compared(suffix, images, weights, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = f"features{suffix}"
    words = [
        "features",
        "timm:test_vit",
        "--weights",
        weights("test_vit"),
        "--data",
        f"{images}",
        "--image-size",
        "32",
        "--to",
        file,
    ]
    assert main([*words, "--accelerator", "cpu"]) == 0
    data = load_features(tmp_path / file)
    assert data.class_names == ("cat", "dog", "eel")
    assert (data.train.images.shape, data.test.images.shape) == ((19, 64), (5, 64))
    backbone = build_backbone("timm:test_vit", weights=weights("test_vit"), image_size=32)
    assert data.train.images.shape[1] == backbone.feature_dim
    quick = ["--epochs", "1", "--quiet", "--accelerator", "cpu"]
    assert main(["compare", "--features", file, "--heads", "linear", "nearest-etf-lagged", "--seeds", "0", *quick]) == 0
    assert "nearest-etf-lagged" in capsys.readouterr().out
