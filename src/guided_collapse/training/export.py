"""The inference model of a finished run, without this package."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from guided_collapse.heads.classifier import Classifier
from guided_collapse.training import randomness
from guided_collapse.training.configuration import check_choice
from guided_collapse.training.files import written_whole
from guided_collapse.training.heads import build_head
from guided_collapse.training.run import RunFolder
from guided_collapse.training.tasks import image_backbone

SUFFIXES = (".onnx", ".pt2", ".safetensors")


class Normalise(nn.Module):
    """(x - mean) / std for each channel of images from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images, (num_samples, channels, height, width)."""
        return (images - self.mean) / self.std


def trained_model(run: RunFolder) -> Classifier:
    """The model of a finished run, in eval mode.

    Raises:
        ValueError: if the run is not finished, or is one of unconstrained features.
    """
    facts, configuration = run.facts(), run.configuration()
    if not run.is_finished or configuration is None:
        raise ValueError(f"{run.path} has not finished. Run: guided-collapse resume {run.path}")
    if facts["inputs"] is None:
        raise ValueError(f"{run.path} has unconstrained features, which belong to its own samples: there is no model for others.")
    backbone = image_backbone(configuration, facts["inputs"]["shape"][0])
    head = build_head(configuration, facts["feature_dim"], facts["num_classes"], randomness.generator(0))
    model = Classifier(backbone, head)
    model.load_state_dict(load_file(run.model_file))
    return model.eval()


def inference_model(run: RunFolder) -> nn.Module:
    """Images from 0 to 1, (num_samples, channels, height, width), to logits, (num_samples, num_classes), in stock layers."""
    inputs = run.facts()["inputs"]
    model = trained_model(run)
    return nn.Sequential(Normalise(inputs["mean"], inputs["std"]), model.export()).eval()


def export_run(run: RunFolder, target: Path) -> None:
    """Writes the inference model, whole or not at all; the batch size is open.

    Args:
        run: a finished run.
        target: a file that ends in .onnx, .pt2 (torch.export) or .safetensors (the tensors, with classes and shapes as metadata).

    Raises:
        ValueError: for another ending, a run that has no inference model, or a package that is missing.
    """
    check_choice("the ending of the file", target.suffix, SUFFIXES)
    inputs = run.facts()["inputs"]
    model = inference_model(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as beside, torch.no_grad():
        if target.suffix == ".safetensors":
            tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
            save_file(tensors, beside, metadata={"inputs": json.dumps(inputs)})
            return
        example = torch.zeros(2, *inputs["shape"])
        batch: dict[int, Any] = {0: torch.export.Dim("num_samples")}
        program = torch.export.export(model, (example,), dynamic_shapes=(batch,), strict=False)
        if target.suffix == ".pt2":
            with beside.open("wb") as file:
                torch.export.save(program, file, extra_files={"inputs.json": json.dumps(inputs)})
            return
        try:
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ValueError("ONNX needs packages: pip install 'guided-collapse[onnx]'.") from error
        with _without_warnings_of("torch.onnx"):  # about packages that these layers do not take
            torch.onnx.export(
                program,
                (),
                str(beside),
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=(batch,),
                external_data=False,
                verbose=False,
            )


@contextmanager
def _without_warnings_of(name: str) -> Iterator[None]:
    """Nothing less than an error is logged under that name."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
