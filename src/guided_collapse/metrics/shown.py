"""A result to read: as text, and as a table in a notebook."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from guided_collapse.metrics.declared import entries

if TYPE_CHECKING:
    from guided_collapse.metrics.result import CollapseResult

CELL = "text-align: left"
FIGURE = "text-align: right; font-variant-numeric: tabular-nums"


class Row(NamedTuple):
    """A number, what it is called, and what it would be at collapse."""

    label: str
    value: str
    at_collapse: str
    meaning: str


def as_text(result: "CollapseResult") -> str:
    """Sections of lines, the numbers aligned."""
    title, *facts = _heading(result)
    lines = [title, *(f"  {fact}" for fact in facts)]
    for section, rows in _numbers(result).items():
        lines += ["", section, *(f"  {row.label:<40}{row.value:>12}" for row in rows)]
    for section, remarks in _remarks(result).items():
        lines += ["", section, *(f"  {remark}" for remark in remarks)]
    return "\n".join(lines)


def as_html(result: "CollapseResult") -> str:
    """A table, with what each number would be at collapse, and its meaning where the mouse rests on its name."""
    title, *facts = map(escape, _heading(result))
    head = "".join(f'<th style="{CELL}">{name}</th>' for name in ("", "value", "at collapse"))
    lines = [f"<table><caption><b>{title}</b><br>{'<br>'.join(facts)}</caption>", f"<thead><tr>{head}</tr></thead>"]
    for section, rows in _numbers(result).items():
        lines.append(f'<tbody><tr><th colspan="3" style="{CELL}">{escape(section)}</th></tr>')
        for row in rows:
            label, value, at_collapse, meaning = map(escape, row)
            lines.append(
                f'<tr><td style="{CELL}" title="{meaning}">{label}</td>'
                f'<td style="{FIGURE}">{value}</td><td style="{FIGURE}">{at_collapse}</td></tr>'
            )
        lines.append("</tbody>")
    lines.append("</table>")
    for section, remarks in _remarks(result).items():
        listed = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
        lines.append(f"<p><b>{escape(section)}</b></p><ul>{listed}</ul>")
    return "\n".join(lines)


def _heading(result: "CollapseResult") -> list[str]:
    present = result.num_classes - len(result.missing_classes)
    seen = [count for count in result.counts if count > 0]
    weights = "centered by their mean" if result.center_weight else "as they are"
    return [
        f"neural collapse of {result.num_samples} samples in {result.feature_dim} dimensions",
        f"classes with samples: {present} of {result.num_classes}, from {min(seen)} to {max(seen)} samples each",
        f"global mean: of the {result.global_mean}; weights: {weights}",
    ]


def _numbers(result: "CollapseResult") -> Mapping[str, list[Row]]:
    """What there is, by section."""
    sections: dict[str, list[Row]] = {}
    for entry in entries():
        metric = entry.metric
        value = result.added[entry.key] if metric.computed_by else getattr(result, entry.key)
        if entry.section is not None and value is not None:
            sections.setdefault(entry.section, []).append(
                Row(metric.label, f"{value:.6g}", metric.at_collapse, f"{metric.meaning} {metric.formula}")
            )
    return sections


def _remarks(result: "CollapseResult") -> Mapping[str, list[str]]:
    """What there is not and why, and what a reader should know."""
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(name)
    found = {"left out": [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()], "notes": list(result.notes)}
    return {section: remarks for section, remarks in found.items() if remarks}
