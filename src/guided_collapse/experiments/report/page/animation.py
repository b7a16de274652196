"""The animation of the collapse, made small enough for a page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.schema import Floats, Trace
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.tables.table import NOTHING, Table, number_text, words

MOST_MOMENTS = 120
LARGEST = 32767  # of 16-bit numbers


@dataclass(frozen=True, eq=False)
class Animation:
    """What one run shows at some of its measurements, and two numbers for each of these moments.

    Attributes:
        run: whose measurements they are.
        trace: the moments that are shown.
        spread: (num_moments,), how far samples are from their class mean, against how far the class means are from their center.
        alignment: (num_moments,), the mean cosine between a class mean and the classifier's row of its class.
    """

    run: Run
    trace: Trace
    spread: Floats
    alignment: Floats


def animations_of(experiment: Experiment) -> list[Animation]:
    """One run for each head: the first seed that has a trace."""
    firsts = (next((run for run in experiment.of(head) if run.trace is not None), None) for head in experiment.heads)
    return [_animation(run, run.trace) for run in firsts if run is not None and run.trace is not None]


def packed(trace: Trace) -> dict[str, float | str]:
    """All points of all moments as 16-bit numbers in base64, and the factor that makes coordinates of them.

    The order is that of (num_moments, 2 num_shown + num_samples, 3): weights, means, samples.
    """
    points = np.concatenate([trace.weights, trace.means, trace.samples], axis=1)
    scale = float(np.abs(points).max()) / LARGEST or 1.0
    numbers = np.round(points / scale).astype("<i2")
    return {"scale": scale, "points": base64.b64encode(numbers.tobytes()).decode("ascii")}


def _animation(run: Run, trace: Trace) -> Animation:
    keep = np.unique(np.round(np.linspace(0, len(trace.epochs) - 1, min(MOST_MOMENTS, len(trace.epochs)))).astype(np.int64))
    shown = Trace(
        trace.epochs[keep], trace.classes, trace.weights[keep], trace.means[keep], trace.samples[keep], trace.sample_labels
    )
    around = np.linalg.norm(shown.samples - shown.means[:, shown.sample_labels], axis=2).mean(axis=1)
    apart = np.linalg.norm(shown.means - shown.means.mean(axis=1, keepdims=True), axis=2).mean(axis=1)
    norms = np.linalg.norm(shown.means, axis=2) * np.linalg.norm(shown.weights, axis=2)
    cosines = (shown.means * shown.weights).sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Animation(run, shown, around / apart, (cosines / norms).mean(axis=1))


def animation_table(animations: Sequence[Animation]) -> Table:
    """The first moment of each animation, one in the middle, and the last, in numbers."""
    rows = []
    for animation in animations:
        for moment in sorted({0, len(animation.spread) // 2, len(animation.spread) - 1}):
            values = (float(animation.spread[moment]), float(animation.alignment[moment]))
            shown = [NOTHING if np.isnan(value) else number_text(value) for value in values]
            rows.append(tuple(map(words, (animation.run.head, str(int(animation.trace.epochs[moment])), *shown))))
    return Table(
        name="animation",
        title="The animation in numbers",
        stub=2,
        columns=("head", "epoch", "distance of samples from their class mean", "cosine of class means with the classifier"),
        rows=tuple(rows),
        csv_rows=(),
        notes=("The distance is relative to that of the class means from their center. At collapse it is 0, and the cosine 1.",),
    )
