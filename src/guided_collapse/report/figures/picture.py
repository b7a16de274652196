"""The picture of the collapse, made small enough for a page."""

import base64
from dataclasses import dataclass

import numpy as np

from guided_collapse.records.run import Run
from guided_collapse.records.schema import Floats, Trace
from guided_collapse.report.experiment import Experiment

MOST_FRAMES = 120
LARGEST = 32767


@dataclass(frozen=True, eq=False)
class Picture:
    """One run's frames, and what they show in two numbers each.

    Attributes:
        run: whose frames they are.
        trace: the frames that are shown.
        spread: (num_frames,), how far samples are from their class mean, against how far the class means are from their centre.
        alignment: (num_frames,), the mean cosine between a class mean and the classifier's row of its class.
    """

    run: Run
    trace: Trace
    spread: Floats
    alignment: Floats


def pictures_of(experiment: Experiment) -> list[Picture]:
    """One run for each head: the first seed that has a picture."""
    firsts = (next((run for run in experiment.of(head) if run.trace is not None), None) for head in experiment.heads)
    return [_picture(run, run.trace) for run in firsts if run is not None and run.trace is not None]


def packed(trace: Trace) -> dict[str, float | str]:
    """All points of all frames as 16-bit numbers in base64, and the factor that makes coordinates of them.

    The order is that of (num_frames, 2 num_shown + num_samples, 3): weights, means, samples.
    """
    points = np.concatenate([trace.weights, trace.means, trace.samples], axis=1)
    scale = float(np.abs(points).max()) / LARGEST or 1.0
    numbers = np.round(points / scale).astype("<i2")
    return {"scale": scale, "points": base64.b64encode(numbers.tobytes()).decode("ascii")}


def _picture(run: Run, trace: Trace) -> Picture:
    keep = np.unique(np.round(np.linspace(0, len(trace.epochs) - 1, min(MOST_FRAMES, len(trace.epochs)))).astype(np.int64))
    shown = Trace(
        trace.epochs[keep], trace.classes, trace.weights[keep], trace.means[keep], trace.samples[keep], trace.sample_labels
    )
    around = np.linalg.norm(shown.samples - shown.means[:, shown.sample_labels], axis=2).mean(axis=1)
    apart = np.linalg.norm(shown.means - shown.means.mean(axis=1, keepdims=True), axis=2).mean(axis=1)
    norms = np.linalg.norm(shown.means, axis=2) * np.linalg.norm(shown.weights, axis=2)
    cosines = (shown.means * shown.weights).sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Picture(run, shown, around / apart, (cosines / norms).mean(axis=1))
