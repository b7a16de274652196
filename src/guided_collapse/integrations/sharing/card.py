"""The card of a shared model: what the hub shows, and what a reader of the folder finds."""

import json
from collections.abc import Mapping

from guided_collapse.experiments.records.text import shortened
from guided_collapse.integrations.sharing.description import ModelDescription
from guided_collapse.metrics.declared import entries

LONGEST = 300


def model_card(description: ModelDescription, place: str) -> str:
    """Markdown with a header in YAML.

    Args:
        description: of the model.
        place: what `from_pretrained` takes.
    """
    head = description.head
    rebuilt = "name" in description.backbone
    backbone = description.backbone["name"] if rebuilt else description.backbone["class"]
    facts = {
        "head": head["class"],
        "classes": head["num_classes"],
        "features": head["feature_dim"],
        "scale": "none, features are as they are" if head["scale"] is None else head["scale"],
        "backbone": backbone,
        "data": description.data or "not stated",
    }
    others = {name: value for name, value in head.items() if name not in ("class", "num_classes", "feature_dim", "scale")}
    argument = "" if rebuilt else ", backbone=backbone"
    missing = "" if rebuilt else f"backbone = ...  # the {shortened(backbone, LONGEST)} that the model was saved with\n"
    sections = [
        "---\nlibrary_name: guided-collapse\ntags:\n- guided-collapse\n- neural-collapse\n---",
        f"# A classifier with a {head['class']}",
        _table(("", ""), facts),
        "## To load it",
        f"```python\nfrom guided_collapse import Classifier\n\n{missing}"
        f"model = Classifier.from_pretrained({_string(place)}{argument})\nlogits = model(inputs)\n```",
        "The weights are in `model.safetensors`; nothing is unpickled.",
        "## Metrics",
        _metrics(description.metrics or {}),
        "## The head",
        _table(("argument", "value"), others),
        f"Saved by guided-collapse {description.version}.",
    ]
    return "\n\n".join(sections) + "\n"


def _metrics(metrics: Mapping[str, float | None]) -> str:
    if not metrics:
        return "None were given."
    declared = {entry.key: entry for entry in entries()}
    lines = ["| metric | value | at collapse |", "|---|---|---|"]
    for name, value in metrics.items():
        entry = declared.get(name)
        label = name if entry is None else f"{name}: {entry.metric.label}"
        lines.append(f"| {_cell(label)} | {value:.6g} | {'' if entry is None else _cell(entry.metric.at_collapse)} |")
    return "\n".join(lines)


def _table(heading: tuple[str, str], rows: Mapping[str, object]) -> str:
    lines = [f"| {heading[0]} | {heading[1]} |", "|---|---|"]
    return "\n".join(lines + [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()])


def _cell(value: object) -> str:
    """Text on one line that is neither markup nor the end of a cell."""
    text = shortened(str(value), LONGEST)
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;")):
        text = text.replace(mark, safe)
    return text


def _string(text: str) -> str:
    """A string of Python that does not end a block of code."""
    return json.dumps(shortened(text, LONGEST).replace("`", "'"))
