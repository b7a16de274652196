"""The result of a measurement: every number, what it rests on, and what was left out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from torch import Tensor

from guided_collapse.metrics.formulas.statistics import GlobalMean
from guided_collapse.metrics.shown import as_html, as_text


@dataclass(frozen=True, eq=False)
class CollapseResult:
    """How collapsed features and classifier are. `print` and a notebook show a table.

    `to_dict` gives plain values, `scalars` what a logger takes.

    A number is None where what it takes was not given, with the reason in `left_out`, and NaN or infinite where it has no value,
    with the reason in `notes`. C is the number of classes with samples wherever class means are involved, and the number of
    all classes for what is said of the weights alone (`nc2`, `weight_equinorm`, `weight_equiangularity`, `bias_collapse`) and for
    predictions and margins. Where weights are compared with means (`nc3`, `equinorm`) the rows of the classes with samples count.

    Example:
        >>> import torch
        >>> from guided_collapse import measure_collapse
        >>> result = measure_collapse(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> result.nearest_center_accuracy, result.nc2, result.to_dict()["counts"]
        (1.0, None, [2, 2, 2])
    """

    nc1: float
    """tr(S_W pinv(S_B)) / C: within-class variability, 0 at collapse."""
    nc2: float | None
    """| WW'/|WW'|_F - Pi/sqrt(m) |_F: how far the weights are from a simplex ETF, where Pi = I - 11'/C and m = C-1.

    For C > d + 1 from a tight frame: m = d, and Pi is the nearest projector of rank d on the complement of 1.
    """
    nc2_means: float
    """The same for the centered class means."""
    nc3: float | None
    """| W Hbar/|W Hbar|_F - Pi/sqrt(m) |_F: how far weights and class means are from being dual."""
    nc4: float | None
    """The share of samples whose predicted class is not that of the nearest class mean."""
    bias_collapse: float | None
    """|W mu_G + b|, called NC4 in some code; 0 by construction for b = -W mu_G."""
    weight_equinorm: float | None
    """std_c |w_c| / avg_c |w_c|."""
    mean_equinorm: float
    """std_c |mu_c - mu_G| / avg_c |mu_c - mu_G|."""
    equinorm: float | None
    """WH-equinorm, the absolute difference of the two."""
    weight_equiangularity: float | None
    """The mean over pairs of classes of |cos(w_c, w_k) + 1/(C-1)|."""
    mean_equiangularity: float | None
    """The same for the centered class means."""
    weight_angle: float | None
    """The smallest angle between two rows of the weight, in degrees."""
    mean_angle: float
    """The same for the centered class means."""
    ideal_angle: float
    """What the smallest angle of C rows in d dimensions is at most."""
    etf_distance: float
    """The squared distance of the centered class means, at unit norm, to the nearest simplex ETF, or tight frame for C > d + 1."""
    class_margin: float | None
    """The least cosine margin of a class mean."""
    mean_cosine_margin: float | None
    """The mean over samples of the cosine margin."""
    ideal_cosine_margin: float | None
    """The largest value that the least cosine margin of all classes can have: C/(C-1) where there is a simplex ETF."""
    cosine_margins: Tensor | None
    """All cosine margins, sorted, float64."""
    cdnv: float
    """Class-distance normalized variance."""
    vci: float
    """Variability collapse index, from 0 (collapsed) to 1."""
    trace_ratio: float
    """tr S_W / tr S_B."""
    numerical_rank: float | None
    """The mean over classes of |H_c|_*^2 / |H_c|_F^2, 1 at collapse."""
    numerical_ranks: tuple[float, ...] | None
    """The numerical rank of each class with samples, in order."""
    accuracy: float | None
    """The share of samples that the classifier predicts rightly."""
    nearest_center_accuracy: float | None
    """The share of samples that are nearest to the mean of their own class."""
    test_nc4: float | None
    """NC4 of the test samples, with the class means of the others."""
    test_accuracy: float | None
    """Accuracy of the test samples."""
    test_nearest_center_accuracy: float | None
    """Nearest-center accuracy of the test samples, with the class means of the others."""
    test_mean_cosine_margin: float | None
    """Mean cosine margin of the test samples, with the global mean of the others."""
    num_samples: int
    num_classes: int
    feature_dim: int
    counts: tuple[int, ...]
    """How many samples each class has."""
    missing_classes: tuple[int, ...]
    """Classes without samples: they have no mean, and take no part in anything that involves class means."""
    between_class_rank: int
    """In how many dimensions the class means differ: min(d, C-1) unless some coincide or lie in a common plane."""
    global_mean: GlobalMean
    """Whether mu_G is the mean of the samples or of the class means."""
    center_weight: bool
    """Whether the weights were centered by their mean before NC2, NC3, equinorm and equiangularity."""
    left_out: dict[str, str]
    """What is None, and why."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know."""
    added: Mapping[str, float | None]
    """By name, metrics that were declared elsewhere (see CONTRIBUTING.md)."""

    def to_dict(self) -> dict[str, object]:
        """All as plain numbers, strings, lists and dictionaries that JSON can hold; NaN and infinity become None.

        Metrics that were added stand beside the others.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "added"}
        return {name: _plain(value) for name, value in (values | dict(self.added)).items()}

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """The finite numbers alone, by name, as loggers take them: what is None, NaN, infinite or a list is left out.

        Args:
            prefix: what names begin with, such as "train/".
        """
        numbers = {name: value for name, value in self.to_dict().items() if isinstance(value, int | float)}
        return {f"{prefix}{name}": value for name, value in numbers.items() if not isinstance(value, bool)}

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        return as_html(self)


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return dict(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
