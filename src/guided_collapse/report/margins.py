"""The sorted cosine margins at the end of training, over seeds."""

from collections.abc import Sequence

import numpy as np

from guided_collapse.records.run import Run
from guided_collapse.records.schema import Split
from guided_collapse.report.summaries import Curve, curve_over

MOST_POINTS = 501


def margins_over_seeds(runs: Sequence[Run], split: Split) -> Curve | None:
    """Sorted margins over the share of samples in per cent; None if no run has them.

    With m_1 <= ... <= m_N, the margin at the share q is the one at the place 1 + q (N-1), between neighbours in proportion. Median
    and range are over seeds at each share.
    """
    margins = [run.margins[split] for run in runs if split in run.margins]
    if not margins:
        return None
    shares = np.linspace(0, 1, min(MOST_POINTS, max(2, *(len(values) for values in margins))))
    rows = [np.interp(shares * (len(values) - 1), np.arange(len(values)), values) for values in margins]
    return curve_over(100 * shares, np.stack(rows))
