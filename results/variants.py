"""Variants of the nearest head, tried before any became an option.

    python -m results.variants PRESET --settings-of SEARCH ...     (see `results.trials`)

All have the settings that the search has chosen for the lagged head.
"""

from typing import Any

import torch
from torch import Tensor

from guided_collapse import CosineHead, NearestETFHead
from guided_collapse.heads.means.running_means import RunningMean
from results.trials import Trial, main


class Forgetful(NearestETFHead):
    """Class means in which a batch has at least some share, however long training has gone on."""

    def __init__(self, *sizes: int, smallest_share: float, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.class_means.smallest_share = smallest_share


class Settling(NearestETFHead):
    """A frame that stands still after some steps."""

    def __init__(self, *sizes: int, moves: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.moves = moves

    def _is_due(self, step: int) -> bool:
        return step <= self.moves

    def _follow(self, centered_class_means: Tensor, is_known: Tensor) -> None:
        if self._is_due(self._count_step()):
            self._keep(self._solve(centered_class_means), is_known)


class CenteredFirst(NearestETFHead):
    """Features that are centered before they are put on the sphere, and not only after."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.before_sphere = RunningMean(self.feature_dim)

    def on_sphere(self, features: Tensor) -> Tensor:
        """As for all heads, once the mean is taken away."""
        features = features.float()
        if not self.training:
            return super().on_sphere(features - self.before_sphere.value)
        mean = features.mean(dim=0)
        self.before_sphere.update(mean.detach(), is_known=torch.tensor(True))
        return super().on_sphere(features - mean)


class LearnedFromFrame(CosineHead):
    """A learned layer, normalized as in the paper, whose first value is the nearest frame of the first steps."""

    def __init__(self, *sizes: int, moves: int, generator: torch.Generator, **options: Any) -> None:
        super().__init__(*sizes, center=True, generator=generator, **options)
        # In a tuple, because a model has one head only.
        self.nearest = (NearestETFHead(*sizes, lagged=True, generator=generator, **options),)
        self.moves = moves

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        (nearest,) = self.nearest
        if int(nearest.class_means.steps) < self.moves:
            nearest(points.detach(), labels)
            with torch.no_grad():
                self.learned_weight.copy_(nearest.frame)
        return super()._training_logits(points, labels)


_LAGGED = {"lagged": True}
VARIANTS = {
    "as it is": Trial(NearestETFHead, _LAGGED),
    "a batch has a share of at least 0.01": Trial(Forgetful, {"smallest_share": 0.01, **_LAGGED}),
    "a batch has a share of at least 0.1": Trial(Forgetful, {"smallest_share": 0.1, **_LAGGED}),
    "the frame moves every 10 steps": Trial(NearestETFHead, {"every": 10, **_LAGGED}),
    "the frame stands still after 100 steps": Trial(Settling, {"moves": 100, **_LAGGED}),
    "centered before the sphere": Trial(CenteredFirst, _LAGGED),
    "a learned layer that starts as the frame of 100 steps": Trial(LearnedFromFrame, {"moves": 100}),
}

if __name__ == "__main__":
    main(VARIANTS, "variants")
