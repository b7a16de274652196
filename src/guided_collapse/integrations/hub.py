"""Saved classifiers: weights in safetensors, `config.json` and a model card, in a folder or on the Hugging Face Hub.

`Classifier.save_pretrained`, `from_pretrained` and `push_to_hub` call `save`, `load` and `push`, and document their arguments.
Nothing is pickled or unpickled, and `config.json` can name no classes but `nn.Linear` and the heads of this package.
"""

import html
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from guided_collapse.heads import HEAD_CLASSES, Classifier
from guided_collapse.lazy import optional
from guided_collapse.metrics.declared import metrics_of_results

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY, FORMAT = "guided-collapse", 1
NOT_SAVED = {"generator", "device", "dtype"}
"""Arguments of heads that `config.json` must not contain."""
Kind = TypeVar("Kind", bound=Classifier)
Token = str | bool | None


def save(
    model: Classifier, folder: Path, *, data: str | None, metrics: Mapping[str, float] | None, place: str | None = None
) -> None:
    """Writes weights, config and model card to a folder. All three files are complete before any existing file is replaced.

    `place` is the folder or repository from which the card tells readers to load the model; if None, the name of the folder.
    """
    safetensors = optional("safetensors.torch", extra="hub")
    metrics = {name: float(value) for name, value in (metrics or {}).items()}
    if infinite := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise ValueError(f"metrics must be finite; got NaN or infinity for {', '.join(infinite)}. Pass result.scalars().")
    config = {
        "library": LIBRARY,
        "format": FORMAT,
        "version": version(LIBRARY),
        "head": _head_config(model.head),
        "backbone": type(model.backbone).__name__,
        "neck": None if model.neck is None else model.neck.in_features,
        "data": data,
        "metrics": metrics,
    }
    if (folder / CONFIG).exists():
        _read_config(folder / CONFIG)  # raises rather than overwriting files of a run or of another library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as staged:
        safetensors.save_model(model, str(Path(staged, WEIGHTS)), metadata={"format": "pt"})
        Path(staged, CARD).write_text(_card(config, place or folder.name), encoding="utf-8")
        Path(staged, CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name in (WEIGHTS, CARD, CONFIG):
            Path(staged, name).replace(folder / name)


def load(cls: type[Kind], source: str | Path, *, backbone: nn.Module, revision: str | None, token: Token) -> Kind:
    """Returns a saved model, in eval mode, with the weights loaded into `backbone`."""
    safetensors = optional("safetensors.torch", extra="hub")
    config_file, weights = _files(source, revision, token)
    config = _read_config(config_file)
    model = _build(cls, backbone, config, source)
    try:
        safetensors.load_model(model, weights)
    except Exception as error:  # a damaged file and weights of another model raise many kinds of errors
        raise ValueError(
            f"{source}: {WEIGHTS} must contain the weights of this backbone and of the {type(model.head).__name__} in {CONFIG}; "
            f"loading failed: {error}. Pass the backbone that the model was saved with, a {config.get('backbone')}."
        ) from error
    return model.eval()


def push(
    model: Classifier, repository: str, *, data: str | None, metrics: Mapping[str, float] | None, private: bool | None, token: Token
) -> str:
    """Uploads what `save` writes to a Hub repository, created if necessary, and returns the URL of its page."""
    hub = optional("huggingface_hub", extra="hub")
    api = hub.HfApi(token=token, library_name=LIBRARY, library_version=version(LIBRARY))
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder), data=data, metrics=metrics, place=repository)
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload a guided-collapse classifier")
    return str(address)


def _files(source: str | Path, revision: str | None, token: Token) -> list[Path]:
    """Returns the paths of `config.json` and the weights, downloaded if the source is not a folder."""
    if Path(source).is_dir():
        return [Path(source, name) for name in (CONFIG, WEIGHTS)]
    hub = optional("huggingface_hub", extra="hub")
    try:
        return [Path(hub.hf_hub_download(str(source), name, revision=revision, token=token)) for name in (CONFIG, WEIGHTS)]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"source must be a folder or a repository on the Hugging Face Hub; got {source}, and the Hub says: {error}"
        ) from error


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} must be a JSON file; reading failed: {error}") from error
    expected = {"library": LIBRARY, "format": FORMAT}
    if not isinstance(config, dict) or not expected.items() <= config.items() or not isinstance(config.get("head"), dict):
        raise ValueError(f"{file} must describe a classifier saved by {LIBRARY}, format {FORMAT}. Choose another folder.")
    return config


def _head_config(head: nn.Module) -> dict[str, Any]:
    name = type(head).__name__
    if isinstance(head, nn.Linear):
        sizes = {"in_features": head.in_features, "out_features": head.out_features}
        return {"class": "Linear", **sizes, "bias": head.bias is not None}
    if HEAD_CLASSES.get(name) is not type(head):
        raise TypeError(f"the head of a saved model must be nn.Linear or one of {', '.join(HEAD_CLASSES)}; got {name}.")
    return {"class": name, **head.config()}


def _build(cls: type[Kind], backbone: nn.Module, config: Mapping[str, Any], source: str | Path) -> Kind:
    options = dict(config["head"])
    name = options.pop("class", None)
    if name not in ("Linear", *HEAD_CLASSES):
        raise ValueError(f"{source}: the head in {CONFIG} must be one of Linear, {', '.join(HEAD_CLASSES)}; got {name!r}.")
    if forbidden := NOT_SAVED & options.keys():
        raise ValueError(f"{source}: the head in {CONFIG} must not set {', '.join(sorted(forbidden))}.")
    try:
        head = nn.Linear(**options) if name == "Linear" else HEAD_CLASSES[name].from_config(**options)
        return cls(backbone, head, neck=config.get("neck"))
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{source}: the head in {CONFIG} cannot be built: {error}") from error


def _card(config: Mapping[str, Any], place: str) -> str:
    """Returns the model card, Markdown with a YAML header."""
    head = dict(config["head"])
    kind = head.pop("class")
    neck = {} if config["neck"] is None else {"neck": f"from {config['neck']} features"}
    facts = {"head": kind, **head, "backbone": config["backbone"], **neck, "data": config["data"] or "not stated"}
    declared = {metric.name: (f"{metric.name}: {metric.label}", metric.at_collapse) for metric in metrics_of_results()}
    rows = []
    for name, value in config["metrics"].items():
        label, at_collapse = declared.get(name, (name, ""))
        rows.append((label, f"{value:.6g}", at_collapse))
    sections = (
        f"---\nlibrary_name: {LIBRARY}\ntags:\n- {LIBRARY}\n- neural-collapse\n---",
        f"# A classifier with a {kind}",
        _table(("", ""), facts.items()),
        "## Usage",
        "```python\nfrom guided_collapse import Classifier\n\n"
        f"backbone = ...  # the {config['backbone']} that the model was saved with\n"
        f"model = Classifier.from_pretrained({json.dumps(place)}, backbone=backbone)\nlogits = model(inputs)\n```",
        "## Metrics",
        _table(("metric", "value", "at collapse"), rows) if rows else "None given.",
        f"Saved by {LIBRARY} {config['version']}.",
    )
    return "\n\n".join(sections) + "\n"


def _table(heading: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Returns a Markdown table, in which every cell is escaped and on a single line."""
    cells = ([html.escape(" ".join(str(value).split()), quote=False).replace("|", "&#124;") for value in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, ("---",) * len(heading), *cells))
