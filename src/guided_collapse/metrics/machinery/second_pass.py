"""The second pass over a stream: what needs the finished class means."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from guided_collapse.metrics.checks import check_samples
from guided_collapse.metrics.collapse import collapse_result
from guided_collapse.metrics.formulas.measured import Measured
from guided_collapse.metrics.formulas.samples import SampleCounts, count_samples
from guided_collapse.metrics.machinery.result_metric import ResultMetric
from guided_collapse.metrics.result import CollapseResult

COUNTS = ("num_samples", "center_correct", "correct", "disagreements")


class SecondPass(ResultMetric):
    """Takes the samples once more, batch by batch, and completes the measurement with NC4, accuracies and cosine margins.

    Made by `CollapseMetrics.second_pass`. It keeps one number for each sample, its cosine margin, and nothing else that grows.
    `compute` gives the whole `CollapseResult`, over all processes.

    Args:
        measured: the finished statistics and the classifier, the same in every process.

    Example:
        >>> import torch
        >>> from guided_collapse import CollapseMetrics
        >>> features, labels, weight = torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2]), torch.eye(3)
        >>> metrics = CollapseMetrics(num_classes=3, feature_dim=3)
        >>> metrics.update(features, labels)
        >>> again = metrics.second_pass(weight)
        >>> again.update(features, labels)
        >>> again.compute().accuracy
        1.0
    """

    num_samples: Tensor
    center_correct: Tensor
    correct: Tensor
    disagreements: Tensor
    margins: list[Tensor]
    test_num_samples: Tensor
    test_center_correct: Tensor
    test_correct: Tensor
    test_disagreements: Tensor
    test_margins: list[Tensor]

    def __init__(self, measured: Measured) -> None:
        super().__init__()
        # A copy of the classifier: training may go on before the second pass is over.
        self.measured = replace(measured, weight=_copied(measured.weight), bias=_copied(measured.bias))
        for prefix in ("", "test_"):
            for name in COUNTS:
                self.add_state(f"{prefix}{name}", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
            self.add_state(f"{prefix}margins", [], dist_reduce_fx="cat")
        self.to(measured.device)

    def update(self, features: Tensor, labels: Tensor, *, test: bool = False) -> None:
        """Takes in one batch.

        Args:
            features: (num_samples, feature_dim).
            labels: (num_samples,), class indices.
            test: whether these are test samples, of which no class means were taken.

        Raises:
            ValueError: for a batch that does not fit; the state is then as it was.
        """
        statistics = self.measured.statistics
        prefix = "test_" if test else ""
        check_samples(features, labels, len(statistics.counts), feature_dim=statistics.class_means.shape[1], prefix=prefix)
        if len(features) == 0:
            return
        batch = count_samples(self.measured, features, labels)
        for name in COUNTS:
            getattr(self, f"{prefix}{name}").add_(getattr(batch, name))
        getattr(self, f"{prefix}margins").append(batch.margins)

    def compute(self) -> CollapseResult:
        """The whole measurement.

        Raises:
            ValueError: if the samples are not as many as the statistics were taken of.
        """
        expected, found = self.measured.statistics.num_samples, int(self.num_samples)
        if found not in (0, expected):
            raise ValueError(
                f"the second pass must see the same samples as the first, {expected} of them; got {found}. "
                "Go through the same data once more, from beginning to end."
            )
        return collapse_result(self.measured, self._counts(""), self._counts("test_"))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Exchanges the states between processes."""
        for margins in (self.margins, self.test_margins):
            if not margins:
                # Else torchmetrics sends an empty tensor of float32 to processes that expect float64.
                margins.append(torch.empty(0, dtype=torch.float64, device=self.num_samples.device))
        super().sync(*args, **kwargs)

    def _counts(self, prefix: str) -> SampleCounts | None:
        counts = {name: getattr(self, f"{prefix}{name}") for name in COUNTS}
        if int(counts["num_samples"]) == 0:
            return None
        return SampleCounts(**counts, margins=dim_zero_cat(getattr(self, f"{prefix}margins")))


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
