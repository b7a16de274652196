"""The data that the page's script draws: the panels and animations of each experiment, as JSON that is safe inside HTML."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from pandas import DataFrame

from guided_collapse.experiments.records import MARGIN, QUANTITIES, TRAIN_LOSS, Floats, Run, Trace, one_line
from guided_collapse.experiments.report.formats import number_text, spread_text
from guided_collapse.experiments.report.styles import HeadStyle, label
from guided_collapse.experiments.report.summaries import ABOVE_FLOOR, Experiment, Spread
from guided_collapse.metrics.declared import SPLITS

MAX_POINTS = 1000  # in a curve, more than a chart has pixels
MAX_MOMENTS = 120  # measurements in an animation
LARGEST = 32767  # the largest 16-bit integer
SIGNIFICANT_DIGITS = 6
BEST_FRAME = "best frame"


class Panel(NamedTuple):
    """One chart of the page."""

    title: str
    horizontal: str  # title of the horizontal axis
    percent: bool
    log: bool | None  # whether the vertical axis is logarithmic by default; None if it cannot be
    references: Sequence[tuple[str, float]]  # theoretical values
    curves: Mapping[str, DataFrame]  # by head

    def endpoints(self) -> dict[str, str]:
        """Returns the first and last point of each curve as text, by head."""
        said = {}
        for head, curve in self.curves.items():
            ends = []
            for x, *numbers in curve.iloc[[0, -1]].itertuples():
                where = f"epoch {x:.0f}" if self.horizontal == "epoch" else f"{number_text(x)} {self.horizontal}"
                ends.append(f"{spread_text(Spread(*numbers), percent=self.percent)} at {where}")
            seeds = int(curve["seeds"].iloc[-1])
            said[label(head)] = f"{'; '.join(ends)}; {seeds} {'seed' if seeds == 1 else 'seeds'}"
        return said


def panels_of(experiment: Experiment) -> list[Panel]:
    """Returns a panel for each recorded quantity, and for the cosine margins of each split at the end of training.

    The loss above its floor takes the place of the train loss.
    """
    panels = []
    for quantity in (ABOVE_FLOOR, *QUANTITIES):
        if quantity is TRAIN_LOSS:
            continue  # the loss above its floor is shown instead, because it is comparable between heads
        if curves := experiment.curves(quantity):
            references = [(BEST_FRAME, value) for value in experiment.references(quantity)]
            panels.append(Panel(quantity.title, "epoch", quantity.percent, quantity.log, references, curves))
    for split in SPLITS:
        if curves := experiment.margins(split):
            references = [(BEST_FRAME, value) for value in experiment.references(MARGIN)]
            title = f"Cosine margins at the end, {split}"
            panels.append(Panel(title, f"% of {split} samples, sorted", False, None, references, curves))
    return panels


def _evenly(count: int, most: int) -> Any:
    """Returns at most `most` evenly spaced indices from 0 to `count` - 1, both included."""
    return np.unique(np.round(np.linspace(0, count - 1, min(most, count))).astype(np.int64))


class Animation(NamedTuple):
    """The trace of one run at some of its measurements, with the spread and the alignment at each."""

    run: Run
    trace: Trace  # at the measurements shown
    spread: Floats  # distance of samples from their class mean, relative to the distance of class means from their center
    alignment: Floats  # mean cosine between a class mean and its row of the classifier


def animations_of(experiment: Experiment) -> list[Animation]:
    """Returns one animation per head, of the first seed with a trace."""
    found = []
    for head in experiment.heads:
        for run, trace in ((run, run.trace) for run in experiment.of(head) if run.trace is not None):
            keep = _evenly(len(trace.epochs), MAX_MOMENTS)
            weights, means, samples = trace.weights[keep], trace.means[keep], trace.samples[keep]
            around = np.linalg.norm(samples - means[:, trace.sample_labels], axis=2).mean(axis=1)
            apart = np.linalg.norm(means - means.mean(axis=1, keepdims=True), axis=2).mean(axis=1)
            norms = np.linalg.norm(means, axis=2) * np.linalg.norm(weights, axis=2)
            shown = Trace(trace.epochs[keep], trace.classes, weights, means, samples, trace.sample_labels)
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append(Animation(run, shown, around / apart, ((means * weights).sum(axis=2) / norms).mean(axis=1)))
            break
    return found


def page_data(panels: Iterable[Sequence[Panel]], animations: Iterable[Sequence[Animation]], styles: Mapping[str, HeadStyle]) -> str:
    """Returns panels and animations by experiment, as JSON that cannot end a script element."""
    heads = list(styles)
    # Curves with the same x coordinates share one list of them.
    place_of: dict[tuple[float, ...], int] = {}
    experiments = []
    for group, moving in zip(panels, animations, strict=True):
        shown = []
        for panel in group:
            entry: dict[str, Any] = {name: getattr(panel, name) for name in ("title", "horizontal", "percent", "log")}
            entry["references"] = [{"label": label, "value": value} for label, value in panel.references]
            entry["curves"] = []
            for head, whole in panel.curves.items():
                curve = whole.iloc[_evenly(len(whole), MAX_POINTS)]
                values: dict[str, Any] = {name: rounded(curve[name]) for name in ("median", "low", "high")}
                if values["low"] == values["median"] == values["high"]:
                    del values["low"], values["high"]
                values["seeds"] = int(curve["seeds"].iat[0]) if curve["seeds"].nunique() == 1 else curve["seeds"].tolist()
                x = place_of.setdefault(tuple(curve.index), len(place_of))
                entry["curves"].append({"head": heads.index(head), "x": x, **values})
            shown.append(entry)
        animated = []
        for run, trace, distances, cosines in moving:
            entry = {"head": heads.index(run.head), "epochs": trace.epochs.tolist(), "classes": trace.classes.tolist()}
            numbers = {"spread": rounded(distances), "alignment": rounded(cosines)}
            animated.append({**entry, "labels": trace.sample_labels.tolist(), **numbers, **packed(trace)})
        experiments.append({"panels": shown, "animations": animated})
    named = [{"name": one_line(label(head)), "dash": style.dash, "marker": style.marker} for head, style in styles.items()]
    found = {"heads": named, "x": [rounded(x) for x in place_of], "experiments": experiments}
    return htmlsafe_json_dumps(found, allow_nan=False, separators=(",", ":"))


def packed(trace: Trace) -> dict[str, float | str]:
    """Returns all points at all measurements as 16-bit integers in base64, and the factor that turns them into coordinates.

    The shape of the points is (num_moments, 2 num_shown + num_samples, 3): weights, means, samples.
    """
    points = np.concatenate([trace.weights, trace.means, trace.samples], axis=1)
    scale = float(np.abs(points).max()) / LARGEST or 1.0
    return {"scale": scale, "points": base64.b64encode(np.round(points / scale).astype("<i2").tobytes()).decode("ascii")}


def rounded(values: Iterable[float]) -> list[float | None]:
    """Returns numbers rounded to the digits that are visible in a chart; None for NaN and infinity."""
    return [float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None for value in values]
