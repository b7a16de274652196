"""What is saved comes back as it was, without unpickling; what cannot be loaded is refused in words."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from guided_collapse import Classifier, CosineHead, FixedETFHead, NearestETFHead, collapse_of
from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.heads import HEADS
from guided_collapse.lazy import imported
from guided_collapse.lazy import MissingPackageError

INPUTS, LABELS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
FILES = {"README.md", "config.json", "model.safetensors"}


def backbone():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU())


def trained(head, network=None):
    model = Classifier(network or backbone(), head)
    with torch.no_grad():
        model(INPUTS, LABELS)
        model(INPUTS + 1, LABELS)
    return model


def same_state(model, other):
    mine, theirs = model.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def options_of(head):
    found = {name: value for name, value in vars(head).items() if not name.startswith("_") and name != "training"}
    return type(head), found, {name for name, _ in head.named_buffers()} | {name for name, _ in head.named_parameters()}


HEADS_TO_SHARE = {
    **{name: lambda name=name: imported(HEADS[name].built_by)(8, 3, **HEADS[name].options) for name in HEADS},
    "lagged, every third": lambda: NearestETFHead(8, 3, scale=3.0, lagged=True, every=3, solver="products"),
    "fixed, not centered": lambda: FixedETFHead(8, 3, center=False, direction="random", check_values=True),
    "linear, with all": lambda: CosineHead(8, 3, normalize=False, center=True, learned_bias=True),
}


@pytest.mark.parametrize("made", HEADS_TO_SHARE.values(), ids=list(HEADS_TO_SHARE))
def test_every_head_comes_back_as_it_was(made, tmp_path):
    model = trained(made())
    model.save_pretrained(tmp_path / "model")
    assert {file.name for file in (tmp_path / "model").iterdir()} == FILES
    loaded = Classifier.from_pretrained(tmp_path / "model", backbone=backbone())
    assert same_state(loaded, model)
    assert options_of(loaded.head) == options_of(model.head)
    assert not loaded.training
    assert torch.equal(loaded(INPUTS), model.eval()(INPUTS))
    # Training goes on as it would have.
    again, more = (part.train()(INPUTS, LABELS) for part in (loaded, model))
    assert torch.equal(again, more)


@pytest.mark.parametrize("name", ["resnet18", "small", "vgg13"])
def test_our_networks_are_built_anew(name, tmp_path):
    network = build_backbone(name, in_channels=1, width=0.125, affine=True).to(memory_format=torch.channels_last)
    model = Classifier(network, FixedETFHead(network.feature_dim, 3))
    model.save_pretrained(str(tmp_path))
    loaded = Classifier.from_pretrained(str(tmp_path))
    assert type(loaded.backbone) is type(network)
    assert same_state(loaded, model)
    assert loaded.backbone.built_as == network.built_as


def test_shared_weights_and_half_precision(tmp_path):
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).bfloat16()
    tied[2].weight = tied[0].weight
    model = Classifier(tied, NearestETFHead(8, 3)).bfloat16()
    model.save_pretrained(tmp_path)
    again = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).bfloat16()
    again[2].weight = again[0].weight
    loaded = Classifier.from_pretrained(tmp_path, backbone=again)
    assert same_state(loaded, model)
    assert loaded.head.weight.dtype == torch.float32


def test_the_card_says_what_it_is(tmp_path):
    model = trained(NearestETFHead(8, 3, scale=7.0))
    result = collapse_of(model, [(INPUTS, LABELS)], progress=False)
    model.save_pretrained(tmp_path / "mine", data="made | up <b>", metrics=result.scalars() | {"mine": 1.0})
    card = (tmp_path / "mine" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: guided-collapse\n")
    for line in ("| head | NearestETFHead |", "| scale | 7.0 |", "| data | made &#124; up &lt;b> |", "| mine | 1 |  |"):
        assert line in card.splitlines()
    assert f"| nc1: NC1, tr(S_W pinv(S_B))/C | {result.nc1:.6g} | 0 |" in card
    assert 'Classifier.from_pretrained("mine", backbone=backbone)' in card
    model.save_pretrained(tmp_path / "bare")
    assert "None were given." in (tmp_path / "bare" / "README.md").read_text()


def test_a_subclass_comes_back_as_one(tmp_path):
    class Mine(Classifier):
        pass

    trained(FixedETFHead(8, 3)).save_pretrained(tmp_path)
    assert type(Mine.from_pretrained(tmp_path, backbone=backbone())) is Mine


class Stranger(FixedETFHead):
    pass


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be one that is declared.*got Stranger"):
        Classifier(backbone(), Stranger(8, 3)).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"finite numbers; got others for nc1"):
        Classifier(backbone(), FixedETFHead(8, 3)).save_pretrained(tmp_path / "model", metrics={"nc1": float("nan")})
    assert not (tmp_path / "model").exists()
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match="is that of a run"):
        Classifier(backbone(), FixedETFHead(8, 3)).save_pretrained(tmp_path)


@pytest.fixture
def saved(tmp_path):
    trained(NearestETFHead(8, 3)).save_pretrained(tmp_path)
    return tmp_path


def test_another_backbone_is_refused(saved):
    with pytest.raises(ValueError, match=r"the backbone must be given .* is a Sequential. Build it as it was"):
        Classifier.from_pretrained(saved)
    for other in (nn.Linear(5, 8), nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU())):
        with pytest.raises(ValueError, match=r"must hold the weights of this backbone and the NearestETFHead"):
            Classifier.from_pretrained(saved, backbone=other)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("head", {"class": "Linear"}, "the head must be one of CosineHead, .*; got 'Linear'"),
        ("head", {"class": "builtins:print"}, "the head must be one of"),
        ("head", {"shape": 3}, "NearestETFHead has no argument shape; a later version"),
        ("head", {"scale": -1.0}, "cannot be built: scale must be a positive"),
        ("head", {"scale": "hot"}, "cannot be built"),
        ("head", {"generator": 3}, "no argument generator"),
        ("backbone", {"name": "os", "options": {}}, "must be one of resnet18, .*; got 'os'"),
        ("backbone", {"name": "small", "options": {"generator": 1}}, "with options that it has"),
        ("backbone", {"name": "small", "options": {"width": -1}}, "cannot be built: width must be"),
    ],
)
def test_a_description_made_to_harm_is_refused(saved, part, change, message):
    file = saved / "config.json"
    content = json.loads(file.read_text())
    content[part] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        Classifier.from_pretrained(saved)


def test_damage_is_refused(saved):
    weights = (saved / "model.safetensors").read_bytes()
    for content in (weights[: len(weights) // 2], b"", b"\x80\x04\x95pickle"):
        (saved / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"model.safetensors must hold the weights"):
            Classifier.from_pretrained(saved, backbone=backbone())
    (saved / "config.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match=r"config.json cannot be used: it must be the record of a shared model"):
        Classifier.from_pretrained(saved, backbone=backbone())
    (saved / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks model.safetensors"):
        Classifier.from_pretrained(saved, backbone=backbone())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine: a folder of repositories."""
    import huggingface_hub

    calls = []

    class Api:
        def __init__(self, **options):
            calls.append(("api", options))

        def create_repo(self, repository, **options):
            calls.append(("create", repository, options))
            return f"https://hub/{repository}"

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            from pathlib import Path

            for file in Path(folder_path).iterdir():
                place = tmp_path / "hub" / repo_id / file.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read_bytes())

    def download(repository, name, *, revision, token):
        calls.append(("download", name, revision, token))
        place = tmp_path / "hub" / repository / name
        if not place.exists():
            raise FileNotFoundError(f"404: {repository}")
        return str(place)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return SimpleNamespace(calls=calls, folder=tmp_path / "hub")


def test_a_round_trip_by_the_hub(hub):
    model = trained(NearestETFHead(8, 3))
    assert model.push_to_hub("me/digits", data="digits", private=True, token="mine") == "https://hub/me/digits"
    assert {file.name for file in (hub.folder / "me" / "digits").iterdir()} == FILES
    assert 'from_pretrained("me/digits"' in (hub.folder / "me" / "digits" / "README.md").read_text()
    assert hub.calls[0][1]["token"] == "mine"
    assert hub.calls[1] == ("create", "me/digits", {"private": True, "exist_ok": True})
    loaded = Classifier.from_pretrained("me/digits", backbone=backbone(), revision="v1")
    assert same_state(loaded, model)
    assert hub.calls[-1] == ("download", "model.safetensors", "v1", None)
    with pytest.raises(ValueError, match=r"there is no folder me/nothing, and the hub .*: 404: me/nothing"):
        Classifier.from_pretrained("me/nothing")


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    model = Classifier(backbone(), FixedETFHead(8, 3))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for act in (lambda: model.push_to_hub("me/digits"), lambda: Classifier.from_pretrained("me/digits")):
        with pytest.raises(MissingPackageError, match=r"pip install huggingface_hub, or .* its extra hub"):
            act()
    model.save_pretrained(tmp_path)  # a folder needs no hub
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingPackageError, match=r"pip install safetensors, or .* its extra hub"):
        Classifier.from_pretrained(tmp_path)
