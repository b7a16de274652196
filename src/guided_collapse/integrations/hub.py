"""Saved classifiers: weights in safetensors, `config.json` and a model card, in a folder or on the Hugging Face hub.

`Classifier.save_pretrained`, `from_pretrained` and `push_to_hub` call `save`, `load` and `push`. Nothing is pickled or unpickled,
and `config.json` can name nothing but heads.
"""

import inspect
import json
import math
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from guided_collapse.heads import HEAD_CLASSES, Classifier
from guided_collapse.lazy import optional
from guided_collapse.metrics.declared import entries

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY, FORMAT = "guided-collapse", 1
NOT_SAVED = ("generator", "device", "dtype")
"""Arguments of heads that `config.json` does not have."""
Kind = TypeVar("Kind", bound=Classifier)


def save(model: Classifier, folder: Path, *, data: str | None = None, metrics: Mapping[str, float] | None = None) -> None:
    """Writes the three files of `Classifier.save_pretrained`, all of them complete before the first one is replaced.

    Raises:
        TypeError: for a head that is neither nn.Linear nor one of this package.
        ValueError: for metrics that are not finite, or a folder with a `config.json` of something else.
        MissingPackageError: if safetensors is missing.
    """
    _save(model, folder, data, metrics, place=folder.name)


def _save(model: Classifier, folder: Path, data: str | None, metrics: Mapping[str, float] | None, *, place: str) -> None:
    """The same, with a card that tells how to load the model from `place`."""
    safetensors = optional("safetensors.torch", extra="hub")
    metrics = {name: float(value) for name, value in (metrics or {}).items()}
    infinite = [name for name, value in metrics.items() if not math.isfinite(value)]
    if infinite:
        raise ValueError(f"metrics must be finite numbers; got others for {', '.join(infinite)}. Pass result.scalars().")
    config = {
        "library": LIBRARY,
        "format": FORMAT,
        "version": version("guided-collapse"),
        "head": _head_config(model.head),
        "backbone": type(model.backbone).__name__,
        "data": data,
        "metrics": metrics,
    }
    if (folder / CONFIG).exists():
        _read_config(folder / CONFIG)  # so that the files of a run or of another library are not overwritten
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as staged:
        safetensors.save_model(model, str(Path(staged, WEIGHTS)), metadata={"format": "pt"})
        Path(staged, CARD).write_text(_card(config, place), encoding="utf-8")
        Path(staged, CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name in (WEIGHTS, CARD, CONFIG):
            Path(staged, name).replace(folder / name)


def load(
    cls: type[Kind],
    source: str | Path,
    *,
    backbone: nn.Module,
    revision: str | None = None,
    token: str | bool | None = None,
) -> Kind:
    """Returns the model that `Classifier.from_pretrained` describes, in eval mode.

    Raises:
        ValueError: if there is no such model, it is damaged, or it does not fit the backbone.
        MissingPackageError: if safetensors, or huggingface_hub for a repository, is missing.
    """
    safetensors = optional("safetensors.torch", extra="hub")
    config_file, weights = _files(source, revision, token)
    config = _read_config(config_file)
    head = _build_head(config["head"], source)
    model = cls(backbone, head)
    try:
        safetensors.load_model(model, weights)
    except Exception as error:  # a damaged file, or weights of another model, fail in several layers and ways
        raise ValueError(
            f"{source}: {WEIGHTS} must hold the weights of this backbone and of the {type(head).__name__} in {CONFIG}; "
            f"loading them failed: {error}. Pass the backbone that the model was saved with, a {config.get('backbone')}."
        ) from error
    return model.eval()


def push(
    model: Classifier,
    repository: str,
    *,
    data: str | None = None,
    metrics: Mapping[str, float] | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
) -> str:
    """Uploads what `save` writes to a repository of the hub, created if necessary, and returns the address of its page."""
    hub = optional("huggingface_hub", extra="hub")
    api = hub.HfApi(token=token, library_name=LIBRARY, library_version=version("guided-collapse"))
    with tempfile.TemporaryDirectory() as folder:
        _save(model, Path(folder), data, metrics, place=repository)
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload a guided-collapse classifier")
    return str(address)


def _files(source: str | Path, revision: str | None, token: str | bool | None) -> tuple[Path, Path]:
    """`config.json` and the weights, downloaded if the source is not a folder."""
    folder = Path(source)
    if folder.is_dir():
        missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        if missing:
            raise ValueError(
                f"the folder of a saved model must hold {CONFIG} and {WEIGHTS}; {folder} lacks {' and '.join(missing)}."
            )
        return folder / CONFIG, folder / WEIGHTS
    hub = optional("huggingface_hub", extra="hub")
    try:
        config, weights = (
            Path(hub.hf_hub_download(str(source), name, revision=revision, token=token)) for name in (CONFIG, WEIGHTS)
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"source must be a folder or a repository on the hub; there is no folder {source}, and the hub says: {error}"
        ) from error
    return config, weights


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON; reading it failed: {error}") from error
    expected = {"library": LIBRARY, "format": FORMAT}
    if not isinstance(config, dict) or not expected.items() <= config.items() or not isinstance(config.get("head"), dict):
        raise ValueError(
            f"{file} must describe a classifier saved by {LIBRARY}, format {FORMAT}; it does not. Choose another folder."
        )
    return config


def _head_config(head: nn.Module) -> dict[str, Any]:
    if isinstance(head, nn.Linear):
        return {
            "class": "Linear",
            "in_features": head.in_features,
            "out_features": head.out_features,
            "bias": head.bias is not None,
        }
    name = type(head).__name__
    if HEAD_CLASSES.get(name) is not type(head):
        raise TypeError(f"the head of a saved model must be nn.Linear or one of {', '.join(HEAD_CLASSES)}; got {name}.")
    return {"class": name, **head.config()}


def _build_head(config: Mapping[str, Any], source: str | Path) -> nn.Module:
    classes: dict[str, type[nn.Module]] = {"Linear": nn.Linear, **HEAD_CLASSES}
    options = dict(config)
    name = options.pop("class", None)
    if name not in classes:
        raise ValueError(f"{source}: the head in {CONFIG} must be one of {', '.join(classes)}; got {name!r}.")
    unknown = options.keys() - (inspect.signature(classes[name].__init__).parameters.keys() - set(NOT_SAVED))
    if unknown:
        raise ValueError(f"{source}: {name} has no argument {', '.join(sorted(unknown))}. A newer guided-collapse may have it.")
    try:
        return classes[name](**options)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{source}: the head in {CONFIG} cannot be built: {error}") from error


def _card(config: Mapping[str, Any], place: str) -> str:
    """The model card: Markdown with a YAML header."""
    head = dict(config["head"])
    kind = head.pop("class")
    facts = {"head": kind, **head, "backbone": config["backbone"], "data": config["data"] or "not stated"}
    declared = {entry.key: entry.metric for entry in entries()}
    rows = []
    for name, value in config["metrics"].items():
        label, at_collapse = (f"{name}: {declared[name].label}", declared[name].at_collapse) if name in declared else (name, "")
        rows.append((label, f"{value:.6g}", at_collapse))
    where = json.dumps(place.replace("`", "'"))
    sections = (
        f"---\nlibrary_name: {LIBRARY}\ntags:\n- {LIBRARY}\n- neural-collapse\n---",
        f"# A classifier with a {kind}",
        _table(("", ""), facts.items()),
        "## Usage",
        "```python\nfrom guided_collapse import Classifier\n\n"
        f"backbone = ...  # the {config['backbone']} that the model was saved with\n"
        f"model = Classifier.from_pretrained({where}, backbone=backbone)\nlogits = model(inputs)\n```",
        "## Metrics",
        _table(("metric", "value", "at collapse"), rows) if rows else "None were given.",
        f"Saved by {LIBRARY} {config['version']}.",
    )
    return "\n\n".join(sections) + "\n"


def _table(heading: tuple[str, ...], rows: Any) -> str:
    lines = [heading, ("---",) * len(heading), *(map(_cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    """Text on one line that is neither markup nor the end of a cell."""
    text = " ".join(str(value).split())
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;")):
        text = text.replace(mark, safe)
    return text
