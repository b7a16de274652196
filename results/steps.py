"""The way from a linear layer to the nearest frame, one step at a time: which of them gains, and which loses.

    python -m results.steps PRESET --grid FIELD=VALUE,VALUE ...     (see `results.trials`)

With `--settings-of SEARCH` instead all have what the search has chosen for the learned layer on spheres, the same learning rate
above all.
"""

import torch

from guided_collapse import CosineHead, FixedETFHead, NearestETFHead
from results.trials import Trial, main


class FeaturesOnSphere(CosineHead):
    """A learned layer with a bias, whose features alone are on a sphere: rows have the norms that they learn."""

    def __init__(self, *sizes: int, scale: float, generator: torch.Generator) -> None:
        super().__init__(*sizes, normalize=False, learned_bias=True, generator=generator)
        self.scale = scale


_ON_SPHERES = "cosine"
STEPS = {
    "nn.Linear": Trial(CosineHead, {"normalize": False, "learned_bias": True}, settings_of=_ON_SPHERES),
    "features on a sphere": Trial(FeaturesOnSphere, settings_of=_ON_SPHERES),
    "rows on a sphere, too": Trial(CosineHead, settings_of=_ON_SPHERES),
    "features centered there": Trial(CosineHead, {"center": True}, settings_of=_ON_SPHERES),
    "rows a simplex ETF that stands still": Trial(FixedETFHead, settings_of=_ON_SPHERES),
    "rows the nearest simplex ETF, lagged": Trial(NearestETFHead, {"lagged": True}, settings_of=_ON_SPHERES),
}

if __name__ == "__main__":
    main(STEPS, "steps")
