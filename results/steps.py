"""The way from a linear layer to the nearest frame, one step at a time: which of them gains, and which loses.

    python -m results.steps PRESET --grid FIELD=VALUE,VALUE ...     (see `results.trials`)

With `--settings-of SEARCH` instead all have what the search has chosen for the learned layer on spheres, the same learning rate
above all.
"""

import torch

from guided_collapse import FixedETFHead, LinearHead, NearestETFHead
from results.trials import Trial, main


class FeaturesOnSphere(LinearHead):
    """A learned layer with a bias, whose features alone are on a sphere: rows have the norms that they learn."""

    def __init__(self, *sizes: int, temperature: float, generator: torch.Generator) -> None:
        super().__init__(*sizes, normalise=False, learned_bias=True, generator=generator)
        self.temperature = temperature


_ON_SPHERES = "standard"
STEPS = {
    "nn.Linear": Trial(LinearHead, {"normalise": False, "learned_bias": True}, settings_of=_ON_SPHERES),
    "features on a sphere": Trial(FeaturesOnSphere, settings_of=_ON_SPHERES),
    "rows on a sphere, too": Trial(LinearHead, settings_of=_ON_SPHERES),
    "features centred there": Trial(LinearHead, {"centre": True}, settings_of=_ON_SPHERES),
    "rows a simplex ETF that stands still": Trial(FixedETFHead, settings_of=_ON_SPHERES),
    "rows the nearest simplex ETF, lagged": Trial(NearestETFHead, {"lagged": True}, settings_of=_ON_SPHERES),
}

if __name__ == "__main__":
    main(STEPS, "steps")
