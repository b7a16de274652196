"""The inference model of a finished run, without this package."""

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from guided_collapse.experiments.errors import DamageError, RequestError, WorkError, requested
from guided_collapse.experiments.records.files import write_bytes
from guided_collapse.experiments.records.schema import OF_A_RUN, Inputs, RunFacts
from guided_collapse.experiments.training import randomness
from guided_collapse.experiments.training.build import build_head
from guided_collapse.experiments.training.folder.facts import Facts, configuration_of, inputs_of
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.configuration import check_choice
from guided_collapse.experiments.training.tasks import image_backbone
from guided_collapse.heads.classifier import Classifier
from guided_collapse.lazy import optional

SUFFIXES = (".onnx", ".pt2", ".safetensors")


class Normalize(nn.Module):
    """(x - mean) / std for each channel of images from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Normalized images, (num_samples, channels, height, width)."""
        return (images - self.mean) / self.std


def trained_model(run: RunFolder) -> Classifier:
    """The model of a finished run, in eval mode; of one that was made longer and has not come to its new end, that of the old end.

    Raises:
        RequestError: if the run is not finished, or is one of unconstrained features.
        DamageError: if its model is damaged.
    """
    return _model_of(run, _facts_of_model(run))


def inference_model(run: RunFolder) -> nn.Module:
    """Images from 0 to 1, (num_samples, channels, height, width), to logits, (num_samples, num_classes), in stock layers."""
    facts = _facts_of_model(run)
    return _with_inputs(_model_of(run, facts), inputs_of(facts))


def _facts_of_model(run: RunFolder) -> Facts:
    """What the finished model says of itself, if there is one that can be exported."""
    facts = run.facts()
    end = run.end()
    way_out = f"Run: guided-collapse resume {run.path}"
    if end.facts is None:
        if end.damage:
            raise DamageError(f"{'; '.join(end.damage)}. {way_out}")
        raise RequestError(f"there is no {run.model_file}: the run has not finished. {way_out}")
    if RunFacts.from_json(end.facts).inputs is None:
        raise RequestError(f"{run.path} has unconstrained features, which belong to its own samples: there is no model for others.")
    for damage in end.damage:
        warnings.warn(f"{damage}; the model is. {way_out}", RuntimeWarning, stacklevel=3)
    of_model = configuration_of(end.facts).epochs
    wanted = configuration_of(facts).epochs
    if of_model < wanted:
        words = f"{run.path} was made longer and has not come to its end of {wanted} epochs; its model is that of {of_model}."
        warnings.warn(f"{words} {way_out}", RuntimeWarning, stacklevel=3)
    return end.facts


def _model_of(run: RunFolder, facts: Facts) -> Classifier:
    configuration = configuration_of(facts)
    backbone = image_backbone(configuration, inputs_of(facts).shape[0])
    sizes = RunFacts.from_json(facts)
    head = build_head(configuration, sizes.feature_dim, sizes.num_classes, randomness.generator(0))
    model = Classifier(backbone, head)
    try:
        model.load_state_dict(load_file(run.model_file))
    except RuntimeError as error:
        raise DamageError(f"{run.model_file} must be the model that {run.config_file} describes; got another: {error}") from error
    return model.eval()


def _with_inputs(model: Classifier, inputs: Inputs) -> nn.Module:
    return nn.Sequential(Normalize(inputs.mean, inputs.std), model.export()).eval()


def export_run(run: RunFolder, target: Path) -> None:
    """Writes the inference model, whole or not at all; the batch size is open.

    Args:
        run: a finished run.
        target: a file that ends in .onnx, .pt2 (torch.export) or .safetensors (the tensors, with classes and shapes as metadata).

    Raises:
        NotWrittenError: if the system refuses, as it does for a full disk.
        RequestError: for another ending, a file of a run, a place that cannot be written, a run that has no inference model, or a
            package that is missing.
        DamageError: for a model that is damaged.
    """
    check_choice("the ending of the file", target.suffix, SUFFIXES)
    if _is_of_a_run(target.resolve()) or target.resolve() == run.model_file.resolve():
        raise RequestError(f"a model must be exported to a file that no run needs; got {target}. Choose another name or folder.")
    with requested():
        facts = _facts_of_model(run)
    inputs = inputs_of(facts)
    model = _with_inputs(_model_of(run, facts), inputs)
    with torch.no_grad():
        content = _safetensors(model, inputs) if target.suffix == ".safetensors" else _program(model, inputs, target.suffix)
    with requested():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content)


def _is_of_a_run(target: Path) -> bool:
    """Whether the file is one that a run keeps; others have a config.json beside a model.safetensors too, but no records."""
    return target.name in OF_A_RUN and RunFolder(target.parent).records_file.exists()


def _safetensors(model: nn.Module, inputs: Inputs) -> bytes:
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    return save(tensors, metadata={"inputs": json.dumps(inputs.to_json())})


def _program(model: nn.Module, inputs: Inputs, suffix: str) -> bytes:
    """What torch.export makes of the model, as it is or in ONNX; in memory, because torch aborts the process on a full disk."""
    example = torch.zeros(2, *inputs.shape)
    batch: dict[int, Any] = {0: torch.export.Dim("num_samples")}
    program = torch.export.export(model, (example,), dynamic_shapes=(batch,), strict=False)
    if suffix == ".onnx":
        return _onnx(program, batch)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"inputs.json": json.dumps(inputs.to_json())})
    return buffer.getvalue()


def _onnx(program: torch.export.ExportedProgram, batch: Mapping[int, Any]) -> bytes:
    optional("onnxscript", extra="onnx")
    with _without_warnings_of("torch.onnx"):  # about packages that these layers do not take
        exported = torch.onnx.export(
            program, (), input_names=["images"], output_names=["logits"], dynamic_shapes=(batch,), verbose=False
        )
    if exported is None:
        raise WorkError("torch.onnx.export must return a program; got None. Try another version of torch.")
    content: bytes = exported.model_proto.SerializeToString()
    return content


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
