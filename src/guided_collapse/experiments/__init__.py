"""The presets, and comparisons of heads over seeds.

Names are imported when first asked for: who looks at a preset need not wait for what trains.
"""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.experiments.comparison import Comparison, compare, comparison_table
    from guided_collapse.experiments.presets import PRESETS, preset
    from guided_collapse.experiments.configuration import Configuration
    from guided_collapse.experiments.configuration import Placement

__all__ = ["PRESETS", "Comparison", "Configuration", "Placement", "compare", "comparison_table", "preset"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "PRESETS": "experiments.presets",
        "Comparison": "experiments.comparison",
        "Configuration": "experiments.configuration",
        "Placement": "experiments.configuration",
        "compare": "experiments.comparison",
        "comparison_table": "experiments.comparison",
        "preset": "experiments.presets",
    },
)
