"""What the page's script draws, as JSON that is safe inside HTML."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from guided_collapse.experiments.records.schema import Floats
from guided_collapse.experiments.records.text import one_line
from guided_collapse.experiments.report.page.animation import Animation, packed
from guided_collapse.experiments.report.page.panels import Panel
from guided_collapse.experiments.report.styles import HeadStyle
from guided_collapse.experiments.report.summaries import Curve

SIGNIFICANT_DIGITS = 6


def page_data(panels: Sequence[Sequence[Panel]], animations: Sequence[Sequence[Animation]], styles: Mapping[str, HeadStyle]) -> str:
    """Panels and animations by experiment; curves that have the same x share it."""
    shared: dict[bytes, int] = {}
    horizontals: list[list[float | None]] = []
    heads = list(styles)

    def horizontal(x: Floats) -> int:
        key = x.tobytes()
        if key not in shared:
            shared[key] = len(horizontals)
            horizontals.append(rounded(x))
        return shared[key]

    experiments = [
        {
            "panels": [_panel(panel, heads, horizontal) for panel in group],
            "animations": [_animation(animation, heads) for animation in shown],
        }
        for group, shown in zip(panels, animations, strict=True)
    ]
    entries = [{"name": one_line(head), "dash": style.dash, "marker": style.marker} for head, style in styles.items()]
    return safe_json({"heads": entries, "x": horizontals, "experiments": experiments})


def safe_json(value: object) -> str:
    """JSON in which nothing can end a script or begin a tag."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def rounded(values: Floats) -> list[float | None]:
    """Numbers with as many digits as can be seen; None for NaN."""
    return [float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]


def _panel(panel: Panel, heads: list[str], horizontal: Any) -> dict[str, Any]:
    return {
        "title": panel.title,
        "horizontal": panel.horizontal,
        "percent": panel.percent,
        "log": panel.log,
        "references": [{"label": label, "value": value} for label, value in panel.references],
        "curves": [{"head": heads.index(head), "x": horizontal(curve.x), **_values(curve)} for head, curve in panel.curves.items()],
    }


def _values(curve: Curve) -> dict[str, Any]:
    counts = curve.count.tolist()
    values: dict[str, Any] = {"median": rounded(curve.median), "seeds": counts[0] if len(set(counts)) == 1 else counts}
    if not (np.array_equal(curve.low, curve.median) and np.array_equal(curve.high, curve.median)):
        values |= {"low": rounded(curve.low), "high": rounded(curve.high)}
    return values


def _animation(animation: Animation, heads: list[str]) -> dict[str, Any]:
    trace = animation.trace
    return {
        "head": heads.index(animation.run.head),
        "epochs": trace.epochs.tolist(),
        "classes": trace.classes.tolist(),
        "labels": trace.sample_labels.tolist(),
        "spread": rounded(animation.spread),
        "alignment": rounded(animation.alignment),
        **packed(trace),
    }
