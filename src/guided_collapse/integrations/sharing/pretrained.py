"""Saving a classifier to a folder or the hub, and loading it from there."""

import math
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import nn

from guided_collapse.experiments.records.contents import read_object
from guided_collapse.experiments.records.fields import RecordError, told_of
from guided_collapse.experiments.records.files import write_json, write_text, written_whole
from guided_collapse.experiments.records.schema import CONFIG, METRICS, METRICS_COMPRESSED, MODEL
from guided_collapse.heads.classifier import Classifier
from guided_collapse.integrations.sharing.card import model_card
from guided_collapse.integrations.sharing.description import (
    ModelDescription,
    backbone_of,
    described_backbone,
    described_head,
    head_of,
)
from guided_collapse.lazy import optional

CARD = "README.md"
Kind = TypeVar("Kind", bound=Classifier)


class Files(NamedTuple):
    """Where the two files are that a model is loaded from."""

    config: Path
    weights: Path


def save(
    model: Classifier, folder: Path, *, data: str | None, metrics: Mapping[str, float] | None, place: str | None = None
) -> None:
    """Writes the three files of a shared model, each whole or not at all.

    Args:
        model: whose head is one that is declared.
        folder: made if there is none.
        data: what the model was trained on.
        metrics: finite numbers, by name.
        place: what the card tells a reader to load; None takes the folder's name.

    Raises:
        ValueError: for a folder of a run, a head that cannot be made again, numbers that are not finite, or a missing package.
        NotWrittenError: if the system refuses.
    """
    safetensors = optional("safetensors.torch", extra="hub")
    for name in (METRICS, METRICS_COMPRESSED):
        if (folder / name).exists():
            raise ValueError(f"a model must be saved in a folder of its own; {folder} is that of a run. Choose another.")
    infinite = [name for name, value in (metrics or {}).items() if not math.isfinite(value)]
    if infinite:
        raise ValueError(f"metrics must be finite numbers; got others for {', '.join(infinite)}. Pass result.scalars().")
    description = ModelDescription(
        version=version("guided-collapse"),
        head=described_head(model.head),
        backbone=described_backbone(model.backbone),
        data=data,
        metrics={name: float(value) for name, value in (metrics or {}).items()},
    )
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / MODEL) as beside:
        safetensors.save_model(model, str(beside), metadata={"format": "pt"})
    write_text(folder / CARD, model_card(description, place or folder.name))
    write_json(folder / CONFIG, description.to_json())


def load(
    kind: type[Kind], source: str | Path, *, backbone: nn.Module | None, revision: str | None, token: str | bool | None
) -> Kind:
    """The model that was saved, in eval mode.

    Raises:
        ValueError: if there is none, it is damaged, the backbone is missing or another one, or a package is missing.
    """
    safetensors = optional("safetensors.torch", extra="hub")
    files = _files(source, revision, token)
    with told_of(str(source)):
        content = read_object(files.config)
        with told_of(CONFIG):
            description = ModelDescription.from_json(content)
            head = head_of(description)
            backbone = backbone_of(description) if backbone is None else backbone
    if backbone is None:
        name = description.backbone.get("class")
        raise ValueError(
            f"the backbone must be given for a model whose backbone is no network of this package; that of {source} is a {name}. "
            "Build it as it was when the model was saved, and pass it: Classifier.from_pretrained(..., backbone=backbone)."
        )
    model = kind(backbone, head)
    try:
        safetensors.load_model(model, files.weights)
    except Exception as error:  # a damaged file, or weights of another model, fail in several layers and ways
        raise RecordError(
            f"{source} cannot be used: {MODEL} must hold the weights of this backbone and the {type(head).__name__} that {CONFIG} "
            f"describes; loading them failed: {error}. Pass the backbone that the model was saved with."
        ) from error
    return model.eval()


def push(
    model: Classifier,
    repository: str,
    *,
    data: str | None,
    metrics: Mapping[str, float] | None,
    private: bool | None,
    token: str | bool | None,
) -> str:
    """Uploads the three files of a shared model, and returns the address of its page."""
    hub = optional("huggingface_hub", extra="hub")
    api = hub.HfApi(token=token, library_name="guided-collapse", library_version=version("guided-collapse"))
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder), data=data, metrics=metrics, place=repository)
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="A classifier of guided-collapse")
    return str(address)


def _files(source: str | Path, revision: str | None, token: str | bool | None) -> Files:
    """The files in a folder, or those of a repository, downloaded."""
    folder = Path(source)
    if folder.is_dir():
        missing = [name for name in (CONFIG, MODEL) if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"a folder with a saved model must hold {CONFIG} and {MODEL}; {folder} lacks {' and '.join(missing)}.")
        return Files(folder / CONFIG, folder / MODEL)
    hub = optional("huggingface_hub", extra="hub")
    try:
        config, weights = (Path(hub.hf_hub_download(str(source), name, revision=revision, token=token)) for name in (CONFIG, MODEL))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"a saved model must be a folder, or a repository of the hub; there is no folder {source}, "
            f"and the hub cannot be asked or has none of that name: {error}"
        ) from error
    return Files(config, weights)
