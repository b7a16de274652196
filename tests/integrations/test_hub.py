"""Saved models load unchanged, without unpickling; files that cannot be loaded are rejected with the reason."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from guided_collapse import AnchoredHead, Classifier, CosineHead, FixedETFHead, NearestETFHead, collapse_of
from guided_collapse.heads import HEAD_CLASSES
from guided_collapse.lazy import MissingPackageError

INPUTS, LABELS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
FILES = {"README.md", "config.json", "model.safetensors"}
HEADS = {
    **{
        f"{name} {classes}": lambda kind=kind, classes=classes: kind(8, classes)
        for name, kind in (HEAD_CLASSES | {"AnchoredHead": lambda *sizes: AnchoredHead(torch.randn(sizes[::-1]))}).items()
        for classes in ((20,) if name == "NearestTightFrameHead" else (3, 20))
    },
    "lagged": lambda: NearestETFHead(8, 3, scale=3.0, lagged=True, every=3, solver="products", proximal_weight=0.01),
    "detached": lambda: NearestETFHead(8, 3, implicit_gradient=False, direction="random"),
    "fixed, not centered": lambda: FixedETFHead(8, 3, center=False, direction="random", check_values=True),
    "cosine, centered": lambda: CosineHead(8, 3, center=True, scale=12.0),
    "anchored, centered": lambda: AnchoredHead(torch.randn(3, 8), frame=0.5, scale=12.0, center=torch.randn(8) / 9),
    "linear": lambda: nn.Linear(8, 3),
    "linear without bias": lambda: nn.Linear(8, 3, bias=False),
}


def backbone():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU())


def trained(head):
    model = Classifier(backbone(), head)
    with torch.no_grad():
        model(INPUTS, LABELS)
        model(INPUTS + 1, LABELS)
    return model


@pytest.mark.parametrize("head", [lambda: AnchoredHead(torch.randn(3, 4)), lambda: nn.Linear(4, 3)], ids=["anchored", "linear"])
def test_a_neck_is_saved_and_loaded(head, tmp_path):
    model = Classifier(backbone(), head(), neck=8)
    model.save_pretrained(tmp_path)
    loaded = Classifier.from_pretrained(tmp_path, backbone=backbone())
    assert same_state(loaded, model)
    assert torch.equal(loaded.embed(INPUTS), model.eval().embed(INPUTS))
    assert "| neck | from 8 features |" in (tmp_path / "README.md").read_text().splitlines()


def same_state(model, other):
    mine, theirs = model.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("build", HEADS.values(), ids=list(HEADS))
def test_every_head_comes_back_as_it_was(build, tmp_path):
    model = trained(build())
    model.save_pretrained(tmp_path / "model")
    assert {file.name for file in (tmp_path / "model").iterdir()} == FILES
    loaded = Classifier.from_pretrained(tmp_path / "model", backbone=backbone())
    assert same_state(loaded, model)
    assert repr(loaded.head) == repr(model.head)
    assert not loaded.training
    assert torch.equal(loaded(INPUTS), model.eval()(INPUTS))
    # Training continues as it would have.
    again, more = (part.train()(INPUTS, LABELS) for part in (loaded, model))
    assert torch.equal(again, more)


def test_tied_weights_half_precision_and_a_subclass(tmp_path):
    class Mine(Classifier):
        pass

    def tied():
        network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).bfloat16()
        network[2].weight = network[0].weight
        return network

    model = Classifier(tied(), NearestETFHead(8, 3)).bfloat16()
    model.save_pretrained(tmp_path)
    loaded = Mine.from_pretrained(tmp_path, backbone=tied())
    assert type(loaded) is Mine
    assert same_state(loaded, model)
    assert loaded.head.weight.dtype == torch.float32


def test_the_card_has_the_facts_and_no_markup_of_others(tmp_path):
    model = trained(NearestETFHead(8, 3, scale=7.0))
    result = collapse_of(model, [(INPUTS, LABELS)])
    model.save_pretrained(tmp_path / "mine", data="made | up <b>", metrics=result.scalars() | {"mine": 1.0})
    lines = (tmp_path / "mine" / "README.md").read_text().splitlines()
    for line in ("| head | NearestETFHead |", "| scale | 7.0 |", "| data | made &#124; up &lt;b&gt; |", "| mine | 1 |  |"):
        assert line in lines
    assert f"| nc1: NC1, tr(S_W pinv(S_B))/C | {result.nc1:.6g} | 0 |" in lines
    assert 'model = Classifier.from_pretrained("mine", backbone=backbone)' in lines


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    class Stranger(FixedETFHead):
        pass

    with pytest.raises(TypeError, match=r"must be nn.Linear or one of .*; got Stranger"):
        Classifier(backbone(), Stranger(8, 3)).save_pretrained(tmp_path / "model")
    model = Classifier(backbone(), FixedETFHead(8, 3))
    with pytest.raises(ValueError, match=r"finite; got NaN or infinity for nc1"):
        model.save_pretrained(tmp_path / "model", metrics={"nc1": float("nan")})
    assert not (tmp_path / "model").exists()
    (tmp_path / "config.json").write_text('{"seed": 0}')
    with pytest.raises(ValueError, match="must describe a classifier saved by guided-collapse"):
        model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_save_that_fails_leaves_the_model_that_was_there(tmp_path, monkeypatch):
    model = trained(NearestETFHead(8, 3))
    model.save_pretrained(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        trained(FixedETFHead(8, 3)).save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.fixture
def saved(tmp_path):
    trained(NearestETFHead(8, 3)).save_pretrained(tmp_path)
    return tmp_path


def test_another_backbone_is_refused(saved):
    for other in (nn.Linear(5, 8), nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU())):
        with pytest.raises(ValueError, match=r"(?s)weights of this backbone and of the NearestETFHead.* a Sequential"):
            Classifier.from_pretrained(saved, backbone=other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class": "builtins:print"}, "must be one of Linear, AnchoredHead, .*; got 'builtins:print'"),
        ({"shape": 3}, "cannot be built: .* unexpected keyword argument 'shape'"),
        ({"scale": -1.0}, "cannot be built: scale must be"),
        ({"generator": 3}, "must not set generator"),
        ({"device": "cuda:9"}, "must not set device"),
    ],
)
def test_a_description_made_to_harm_is_refused(saved, change, message):
    file = saved / "config.json"
    content = json.loads(file.read_text())
    content["head"] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        Classifier.from_pretrained(saved, backbone=backbone())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"\x80\x04\x95pickle", "must contain the weights"),
        ("model.safetensors", None, "must contain the weights.*No such file"),
        ("config.json", b'{"format": 2}', "must describe a classifier saved by guided-collapse"),
        ("config.json", b"[", "must be a JSON file"),
        ("config.json", None, "must be a JSON file.*No such file"),
    ],
)
def test_damage_is_refused(saved, name, content, message):
    (saved / name).unlink() if content is None else (saved / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s){name} {message}"):
        Classifier.from_pretrained(saved, backbone=backbone())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local hub, that is, a folder of repositories, and the requests it received."""
    import huggingface_hub

    api = Mock()
    api.return_value.create_repo.side_effect = lambda repository, **_: f"https://hub/{repository}"
    api.return_value.upload_folder.side_effect = lambda repo_id, folder_path, **_: copytree(folder_path, tmp_path / repo_id)

    def download(repository, name, **_):
        if not (tmp_path / repository / name).exists():
            raise FileNotFoundError(f"404: {repository}")
        return str(tmp_path / repository / name)

    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(side_effect=download))
    return SimpleNamespace(api=api, download=huggingface_hub.hf_hub_download, folder=tmp_path)


def test_a_round_trip_through_the_hub(hub):
    model = trained(NearestETFHead(8, 3))
    assert model.push_to_hub("me/digits", data="digits", private=True, token="mine") == "https://hub/me/digits"
    assert {file.name for file in (hub.folder / "me" / "digits").iterdir()} == FILES
    assert 'from_pretrained("me/digits"' in (hub.folder / "me" / "digits" / "README.md").read_text()
    assert hub.api.call_args.kwargs["token"] == "mine"
    hub.api.return_value.create_repo.assert_called_once_with("me/digits", private=True, exist_ok=True)
    loaded = Classifier.from_pretrained("me/digits", backbone=backbone(), revision="v1")
    assert same_state(loaded, model)
    hub.download.assert_called_with("me/digits", "model.safetensors", revision="v1", token=None)
    with pytest.raises(ValueError, match="got me/nothing, and the Hub says: 404: me/nothing"):
        Classifier.from_pretrained("me/nothing", backbone=backbone())


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match=r"its extra hub, .* or huggingface_hub alone"):
        Classifier.from_pretrained("me/digits", backbone=backbone())
    Classifier(backbone(), FixedETFHead(8, 3)).save_pretrained(tmp_path)  # a folder needs no hub
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingPackageError, match=r"its extra hub, .* or safetensors alone"):
        Classifier.from_pretrained(tmp_path, backbone=backbone())


def test_the_library_needs_torch_numpy_and_torchmetrics_alone():
    program = """
import sys
from importlib import metadata

def distribution(name, found=metadata.distribution):
    if name == "transformers":  # torchmetrics imports it if it is installed
        raise metadata.PackageNotFoundError(name)
    return found(name)

metadata.distribution = distribution
for name in ("safetensors", "huggingface_hub", "lightning_fabric", "pydantic", "pandas", "datasets", "filelock", "tyro"):
    sys.modules[name] = None
import torch, guided_collapse
from guided_collapse import *
model = Classifier(torch.nn.Linear(5, 8), NearestETFHead(8, 3))
inputs, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
model(inputs, labels)
assert collapse_of(model, [(inputs, labels)]).num_samples == 6
assert not any(name.startswith("guided_collapse.experiments") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
