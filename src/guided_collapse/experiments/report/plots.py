"""A figure of one measurement, or of runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from guided_collapse.experiments.report.run_table import NEEDED
from guided_collapse.lazy import optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@runtime_checkable
class Measurement(Protocol):
    """What a figure takes of a `CollapseResult`."""

    def scalars(self, prefix: str = "") -> Mapping[str, float]:
        """The finite numbers, by name."""

    def to_dict(self) -> Mapping[str, object]:
        """Everything as plain values."""


def plot_collapse(measured: "Measurement | DataFrame") -> "Figure":
    """A figure of matplotlib: of a result every metric that is 0 at collapse, and the margins; of runs their curves over epochs.

    Curves are medians over seeds with the range as a band, a panel for each metric of the table that is shown over epochs, and
    dotted lines for what theory gives. Leave out rows or columns of the table to show less.

    Args:
        measured: a `CollapseResult`, or the table that `load_runs` gives.

    Returns:
        A figure that a notebook shows; `figure.savefig("collapse.pdf")` writes it.

    Raises:
        ValueError: for anything else, a table without what a figure needs, or if matplotlib is missing.

    Example:
        >>> import torch
        >>> from guided_collapse import measure_collapse, plot_collapse
        >>> labels = torch.arange(60) % 3
        >>> result = measure_collapse(torch.eye(3)[labels] + 0.1 * torch.randn(60, 3), labels, torch.eye(3))
        >>> [panel.get_title() for panel in plot_collapse(result).axes]
        ['0 at collapse', 'Cosine margins']
    """
    optional("matplotlib", extra="notebook")
    from guided_collapse.experiments.report.figures.collapse import result_figure, runs_figure

    if isinstance(measured, Measurement):
        return result_figure(measured.scalars(), measured.to_dict().get("cosine_margins"))
    columns = getattr(measured, "columns", None)
    if columns is None:
        raise ValueError(
            f"what is plotted must be a CollapseResult or the table of load_runs(folder); got {type(measured).__name__}."
        )
    lacking = [name for name in NEEDED if name not in columns]
    if lacking:
        raise ValueError(f"a table of runs must have the columns {', '.join(NEEDED)}; it lacks {', '.join(lacking)}. Keep them.")
    return runs_figure(measured)
