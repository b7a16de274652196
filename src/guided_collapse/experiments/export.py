"""Exports the inference model of a finished run, for use without this package."""

import io
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from guided_collapse.experiments.errors import RequestError, check_choice, requested
from guided_collapse.experiments.files import write_bytes
from guided_collapse.experiments.heads import build_head
from guided_collapse.experiments.run import METRICS, MODEL, OF_A_RUN, Inputs, RunFolder, configuration_of
from guided_collapse.experiments.tasks import joined, new_backbone, random_generator
from guided_collapse.heads.classifier import Classifier
from guided_collapse.lazy import optional

SUFFIXES = (".onnx", ".pt2", ".safetensors")


class Normalize(nn.Module):
    """Computes (x - mean) / std, per channel for images with values from 0 to 1, or per feature."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        shape = (-1, *(1 for _ in inputs.shape[1:]))
        self.mean, self.std = (nn.Buffer(torch.tensor(values).reshape(shape)) for values in (inputs.mean, inputs.std))

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns normalized inputs, of the same shape."""
        return (inputs - self.mean) / self.std


def check_target(target: Path, suffixes: Sequence[str]) -> None:
    """Raises RequestError for a target whose suffix is not among `suffixes`, or that would replace a file of a run."""
    check_choice("the suffix of the file", target.suffix, suffixes)
    place = target.resolve()
    if place.name in OF_A_RUN and (place.parent / METRICS).exists():
        raise RequestError(f"the output file must not replace a file of a run; got {target}. Choose another name or folder.")


def trained_model(run: RunFolder) -> Classifier:
    """Returns the model of a finished run, in eval mode; raises RequestError or DamageError if there is none."""
    facts, inputs = run.exportable()
    configuration = configuration_of(facts)
    backbone = new_backbone(configuration, inputs.shape[0])
    head = build_head(configuration, facts.feature_dim, facts.num_classes, random_generator(0))
    model = joined(backbone, head, random_generator(0))
    model.load_state_dict(load_file(run.path / MODEL))
    return model.eval()


def inference_model(run: RunFolder) -> nn.Module:
    """Returns a model that maps images with values from 0 to 1, or features, (num_samples, ...), to logits."""
    inputs = run.exportable()[1]
    return nn.Sequential(Normalize(inputs), trained_model(run).export()).eval()


def export_run(run: RunFolder, target: Path) -> None:
    """Writes the inference model of a finished run atomically; the model takes any batch size.

    The target ends in .onnx, .pt2 (torch.export) or .safetensors (only the tensors). Each holds `inputs`, as JSON: shape,
    mean and std of the inputs, and the names of the classes in the order of the logits.
    """
    check_target(target, SUFFIXES)
    inputs, model = run.exportable()[1], inference_model(run)
    with torch.no_grad():
        if target.suffix == ".safetensors":
            tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
            content = save(tensors, metadata={"inputs": json.dumps(asdict(inputs))})
        else:
            content = _program(model, inputs, target.suffix)
    with requested():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)


def _program(model: nn.Module, inputs: Inputs, suffix: str) -> bytes:
    """Returns the output of torch.export or torch.onnx, kept in memory because torch aborts the process on a full disk."""
    batch: dict[int, Any] = {0: torch.export.Dim("num_samples")}
    program = torch.export.export(model, (torch.zeros(2, *inputs.shape),), dynamic_shapes=(batch,), strict=False)
    if suffix == ".pt2":
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={"inputs.json": json.dumps(asdict(inputs))})
        return buffer.getvalue()
    optional("onnxscript", extra="onnx")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torch.onnx warns about packages that these layers do not need
    names: dict[str, Any] = {"input_names": ["images" if len(inputs.shape) > 1 else "features"], "output_names": ["logits"]}
    exported: Any = torch.onnx.export(program, (), dynamic_shapes=(batch,), verbose=False, **names)
    exported.model.metadata_props["inputs"] = json.dumps(asdict(inputs))
    content: bytes = exported.model_proto.SerializeToString()
    return content
