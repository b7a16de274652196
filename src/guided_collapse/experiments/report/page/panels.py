"""The interactive panels of an experiment: which curves, which reference lines, and the same in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from guided_collapse.experiments.records.declared.quantities import MARGIN, QUANTITIES
from guided_collapse.experiments.records.schema import SPLITS
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.summaries import Curve, Spread, margins_over_seeds, over_seeds
from guided_collapse.experiments.report.tables.table import number_text, spread_text

# About 7 MB of the page: four heads with 5000 measured epochs.
MOST_POINTS = 250_000
FEWEST_POINTS = 50
REFERENCE_LABELS = {"loss_lower_bound": "lower bound", "ideal_margin": "best frame"}


@dataclass(frozen=True)
class Panel:
    """One chart of the page.

    Attributes:
        title: for people.
        horizontal: what the horizontal axis shows.
        percent: whether values are per cent.
        log: whether the axis is logarithmic at first; None if it cannot be.
        references: label and value of what theory gives.
        curves: by head.
        meaning: one sentence.
    """

    title: str
    horizontal: str
    percent: bool
    log: bool | None
    references: tuple[tuple[str, float], ...]
    curves: dict[str, Curve]
    meaning: str

    def in_words(self) -> dict[str, str]:
        """What each curve shows, by head: where it begins and where it ends."""
        return {head: self._words(curve) for head, curve in self.curves.items()}

    def _words(self, curve: Curve) -> str:
        first, last = (self._at(curve, point) for point in (0, -1))
        seeds = int(curve.count[-1])
        return f"{first}; {last}; {seeds} {'seed' if seeds == 1 else 'seeds'}"

    def _at(self, curve: Curve, point: int) -> str:
        spread = Spread(float(curve.median[point]), float(curve.low[point]), float(curve.high[point]), int(curve.count[point]))
        where = (
            f"{number_text(float(curve.x[point]))} {self.horizontal}" if "%" in self.horizontal else f"epoch {curve.x[point]:.0f}"
        )
        return f"{spread_text(spread, percent=self.percent)} at {where}"


def panels_of(experiment: Experiment) -> list[Panel]:
    """A panel for each quantity that some run has measured, and for the margins at the end."""
    panels = []
    for quantity in QUANTITIES:
        found = {head: over_seeds(experiment.of(head), quantity) for head in experiment.heads}
        curves = {head: curve for head, curve in found.items() if curve is not None}
        name = REFERENCE_LABELS.get(quantity.reference or "", "")
        references = tuple((name, value) for value in experiment.references(quantity))
        panels.append(Panel(quantity.title, "epoch", quantity.percent, quantity.log, references, curves, quantity.meaning))
    for split in SPLITS:
        found = {head: margins_over_seeds(experiment.of(head), split) for head in experiment.heads}
        curves = {head: curve for head, curve in found.items() if curve is not None}
        references = tuple((REFERENCE_LABELS["ideal_margin"], value) for value in experiment.references(MARGIN))
        title, meaning = f"Cosine margins at the end, {split}", f"The sorted cosine margins of all {split} samples."
        panels.append(Panel(title, f"% of {split} samples", False, None, references, curves, meaning))
    return [panel for panel in panels if panel.curves]


def thinned(panels: Sequence[Sequence[Panel]]) -> tuple[list[list[Panel]], int | None]:
    """The panels with at most so many points a curve that the page stays small, and that number, or None if all points are kept."""
    lengths = [len(curve.x) for panel in _flat(panels) for curve in panel.curves.values()]
    if sum(lengths) <= MOST_POINTS:
        return [list(group) for group in panels], None
    most = max(FEWEST_POINTS, MOST_POINTS // len(lengths))
    return [
        [replace(panel, curves={head: _thin(curve, most) for head, curve in panel.curves.items()}) for panel in group]
        for group in panels
    ], most


def _flat(panels: Sequence[Sequence[Panel]]) -> Iterable[Panel]:
    return (panel for group in panels for panel in group)


def _thin(curve: Curve, most: int) -> Curve:
    if len(curve.x) <= most:
        return curve
    keep = np.round(np.linspace(0, len(curve.x) - 1, most)).astype(np.int64)
    return Curve(curve.x[keep], curve.median[keep], curve.low[keep], curve.high[keep], curve.count[keep])
