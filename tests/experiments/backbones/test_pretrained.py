"""Files of weights, and what happens without timm; models of timm are in tests/integrations."""

import argparse
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.backbones.pretrained import read_state_dict
from guided_collapse.experiments.cli import main
from tests.experiments.data.made_up import write_folders

STATE = nn.Linear(3, 2).state_dict()


@pytest.mark.parametrize(
    "content",
    [STATE, {"state_dict": STATE, "epoch": 3}, {"model": STATE}, {f"module.{name}": value for name, value in STATE.items()}],
    ids=["plain", "in state_dict", "in model", "of DistributedDataParallel"],
)
def test_a_state_dict_is_found_where_training_scripts_put_it(content, tmp_path):
    torch.save(content, tmp_path / "weights.pth")
    found = read_state_dict(tmp_path / "weights.pth")
    assert {name: value.tolist() for name, value in found.items()} == {name: value.tolist() for name, value in STATE.items()}


def test_safetensors(tmp_path):
    save_file(STATE, tmp_path / "weights.safetensors")
    assert torch.equal(read_state_dict(tmp_path / "weights.safetensors")["weight"], STATE["weight"])


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("content", [nn.Linear(3, 2), {"state_dict": STATE, "args": argparse.Namespace()}, Bomb()])
def test_nothing_but_tensors_is_unpickled(content, tmp_path):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="holds other pickled objects, which are never loaded"):
        read_state_dict(tmp_path / "weights.pth")


def test_other_content_is_refused(tmp_path):
    for content in (torch.zeros(3), {"epoch": 3}, {}):
        torch.save(content, tmp_path / "weights.pt")
        with pytest.raises(ValueError, match="must be a state dict of tensors"):
            read_state_dict(tmp_path / "weights.pt")
    (tmp_path / "weights.safetensors").write_bytes(b"garbage" * 5)
    with pytest.raises(ValueError, match="must be a readable state dict"):
        read_state_dict(tmp_path / "weights.safetensors")
    torch.save(STATE, tmp_path / "cut.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "cut.pth").read_bytes()[:500])
    with pytest.raises(ValueError, match="must be a readable state dict"):
        read_state_dict(tmp_path / "cut.pth")
    with pytest.raises(ValueError, match="is not: No such file"):
        read_state_dict(tmp_path / "nowhere.pth")
    with pytest.raises(ValueError, match=r"must be in a file that ends in .safetensors, .pt, .pth, .bin; got .*weights.npz"):
        read_state_dict(tmp_path / "weights.npz")


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed here")
def test_without_timm_the_error_names_the_extra_and_nothing_is_written(tmp_path, capsys):
    write_folders(tmp_path / "data", num_per_class=3)
    with pytest.raises(ValueError, match="Install guided-collapse with its extra timm"):
        build_backbone("timm:resnet18")
    words = ["train", "--data", f"{tmp_path / 'data'}", "--backbone", "timm:resnet18", "--out", f"{tmp_path / 'runs'}"]
    assert main(words) == 2
    assert "or timm alone" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
