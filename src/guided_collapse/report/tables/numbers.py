"""Numbers and their spread as text."""

import math

from guided_collapse.report.summaries import AtEpoch, Spread
from guided_collapse.report.tables.table import NOTHING, Cell, words

NEVER = "never"
LARGE = 1000


def figure(value: float, *, percent: bool = False) -> str:
    """A number as text: two decimals for per cent, else four significant digits; `never` for infinity."""
    if math.isinf(value):
        return NEVER
    return f"{value:.2f}" if percent else f"{value:.4g}"


def spread_text(spread: Spread, *, percent: bool = False) -> str:
    """`median (low to high)`, or the one value there is."""
    median = figure(spread.median, percent=percent)
    if spread.count == 1:
        return median
    return f"{median} ({figure(spread.low, percent=percent)} to {figure(spread.high, percent=percent)})"


def short_text(spread: Spread | None, *, percent: bool = False) -> str:
    """`median (low to high)`, or the value that all seeds agree on."""
    if spread is None:
        return NOTHING
    return figure(spread.median, percent=percent) if spread.low == spread.high else spread_text(spread, percent=percent)


def spread_latex(spread: Spread, *, percent: bool = False) -> str:
    r"""`$median\,^{high}_{low}$`, as the paper sets it."""
    median, low, high = (_latex(figure(value, percent=percent)) for value in (spread.median, spread.low, spread.high))
    return f"${median}$" if spread.count == 1 else rf"${median}\,^{{{high}}}_{{{low}}}$"


def spread_cell(spread: Spread | None, *, percent: bool = False) -> Cell:
    """A cell with median and range."""
    if spread is None:
        return words(NOTHING)
    return Cell(spread_text(spread, percent=percent), spread_latex(spread, percent=percent))


def at_epoch_cell(found: AtEpoch | None, epoch: int | None, *, percent: bool = False) -> Cell:
    """A cell with median and range, and with the epochs in brackets if they are not the one that was asked for."""
    if found is None:
        return words(NOTHING)
    cell = spread_cell(found.spread, percent=percent)
    if epoch is None or set(found.epochs) == {epoch}:
        return cell
    bracket = f" [epoch {epochs_text(found.epochs)}]"
    return Cell(cell.text + bracket, cell.latex + bracket)


def epochs_text(epochs: tuple[int, ...]) -> str:
    """`30`, or `30 to 50` where runs differ."""
    low, high = min(epochs), max(epochs)
    return str(low) if low == high else f"{low} to {high}"


def _latex(text: str) -> str:
    if text == NEVER:
        return r"\text{never}"
    mantissa, _, exponent = text.partition("e")
    return rf"{mantissa}{{\cdot}}10^{{{int(exponent)}}}" if exponent else text


def amount(value: float) -> str:
    """Milliseconds or megabytes: of a thousand and more, fractions say nothing."""
    return f"{value:,.0f}" if value >= LARGE else figure(value)
