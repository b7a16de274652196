"""Running means of many classes, of which a batch changes only those that it holds."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from guided_collapse.heads.means.batch import gather_over_processes, looks_at_values
from guided_collapse.heads.means.running_means import RunningClassMeans, smallest_norm
from guided_collapse.heads.means.targets import LEFT_OUT, is_soft
from guided_collapse.heads.precision import state_dtype
from guided_collapse.heads.snapshot import snapshot


class _Present(NamedTuple):
    """The classes of a batch, in as many places as it has samples; the places that are left over repeat the first class."""

    labels: Tensor
    """(num_samples,), the class of each place."""
    counts: Tensor
    """(num_samples,), how many samples it has; 0 for places that are left over, and for all if all samples are left out."""
    means: Tensor
    """(num_samples, feature_dim), their mean, without the rows' common mean; 0 for places that are left over."""

    @property
    def is_used(self) -> Tensor:
        return self.counts > 0


class SparseClassMeans(RunningClassMeans):
    """The same means as `RunningClassMeans` to rounding, without gradient, at a cost that does not grow with the number of classes.

    A class that is absent from a batch is only rescaled, and by the same factor as all others that are. So rows are kept up to a
    common factor, and `fold` applies it from time to time.

    Soft labels may hold all classes in every sample, so they are taken in by the formula for all classes, with its cost: some
    matrices of the size of all means for a moment, beside the labels, which are as large as the logits.

    It is made with what `RunningClassMeans` is made with.

    Example:
        >>> import torch
        >>> from guided_collapse.heads.means.sparse_means import SparseClassMeans
        >>> means = SparseClassMeans(feature_dim=8, num_classes=1000)
        >>> means.update(torch.randn(4, 8), torch.tensor([0, 1, 0, 999])).centered_class_means.count_nonzero(dim=0)[0]
        tensor(3)
    """

    scale: Tensor
    """What the rows of `running` are to be multiplied with, (1,)."""
    squares: Tensor
    """The sum of the squares of all means, (1,)."""
    num_seen: Tensor
    """How many classes were seen, a scalar."""

    def __init__(self, feature_dim: int, num_classes: int, *, check_values: bool | None = None) -> None:
        super().__init__(feature_dim, num_classes, check_values=check_values)
        # torch.compile takes scalars of float64 on a CPU for Python numbers, and leaves out that they are written to.
        self.register_buffer("scale", torch.ones(1, dtype=state_dtype()))
        self.register_buffer("squares", torch.zeros(1, dtype=state_dtype()))
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Forgets all batches."""
        super().reset_parameters()
        if "scale" in self._buffers:  # it is not there yet when the class above is made
            self.scale.fill_(1)
            self.squares.zero_()
            self.num_seen.zero_()

    def take_in(self, centered_features: Tensor, global_mean: Tensor, labels: Tensor) -> Tensor:
        """Takes in one batch, and returns all class means, without gradient; see `take_in_rows`, which returns nothing."""
        self.take_in_rows(centered_features, global_mean, labels)
        return (self.scale * self.running).to(centered_features.dtype)

    @torch.no_grad()
    def take_in_rows(self, centered_features: Tensor, global_mean: Tensor, labels: Tensor) -> None:
        """Takes in one batch that is checked and centered, by the formula of `RunningClassMeans.take_in`.

        Args:
            centered_features: (num_samples, feature_dim), float32 or wider: the features minus their global mean.
            global_mean: (feature_dim,), the mean over the batches of all processes.
            labels: (num_samples,), int64, or (num_samples, num_classes), soft.
        """
        if is_soft(labels):
            self._take_in_whole(centered_features, global_mean, labels)
            return
        present = _present(gather_over_processes(centered_features), gather_over_processes(labels), global_mean, self.num_classes)
        used, dtype = present.is_used[:, None], torch.promote_types(centered_features.dtype, self.running.dtype)
        means = present.means.to(dtype)
        seen = self.seen[present.labels].to(torch.bool)[:, None] & used
        kept = self.running[present.labels].to(dtype)
        before = torch.where(used, kept * self.scale, 0.0)

        squares, known_squares = means.square().sum(), torch.where(seen, before, 0.0).square().sum()
        absent_squares = (self.squares - known_squares).clamp(min=0)
        num_present, num_known = used.sum(), self.num_seen
        is_known = num_present > 0
        size = (squares / num_present.clamp(min=1)).sqrt()
        known_size = (self.squares / num_known.clamp(min=1)).sqrt()
        in_scale = torch.where(known_size > 0, size / known_size, size)
        norm = (squares + in_scale.square() * absent_squares).sqrt()
        inverse_norm = torch.where(norm > 0, 1 / norm, 0.0)

        share = torch.where(is_known, self._share(self.steps + 1, dtype), 0.0)
        factor = share * in_scale * inverse_norm + (1 - share)
        batch = means * inverse_norm
        updated = torch.where(seen, share * batch + (1 - share) * before, batch)
        # With no class left to rescale, as on the first step, the factor may be 0.
        scale = torch.where(factor > 0, self.scale * factor, 1.0)
        rows = torch.where(used, updated / scale, torch.where(is_known, (updated / scale)[:1], kept))
        total = factor.square() * absent_squares + torch.where(used, updated, 0.0).square().sum()

        checked = looks_at_values(self.check_values, centered_features.device)
        if not checked:
            finite = torch.isfinite(rows).all() & torch.isfinite(total)
            rows = torch.where(finite, rows, kept)
            scale, total = torch.where(finite, scale, self.scale), torch.where(finite, total, self.squares)
        self.running.index_copy_(0, present.labels, rows.to(self.running.dtype))
        self.scale.copy_(scale)
        self.squares.copy_(total)
        self.num_seen.add_((used & ~seen).sum())
        self.seen.index_copy_(0, present.labels, self.seen[present.labels] | is_known)
        self.global_mean.update(global_mean, is_known=is_known, checked=checked)

    def _take_in_whole(self, centered_features: Tensor, global_mean: Tensor, labels: Tensor) -> None:
        """Takes in one batch as `RunningClassMeans` does, with all rows."""
        self.running.copy_(snapshot(self.running) * snapshot(self.scale))
        self.scale.fill_(1)
        means = super().take_in(centered_features, global_mean, labels)
        self.squares.copy_(means.square().sum())
        self.num_seen.copy_(self.seen.sum())

    @torch.no_grad()
    def fold(self) -> None:
        """Multiplies the rows with their common factor, so that nothing gets too large, and sums their squares anew."""
        self.running.mul_(self.scale)
        self.scale.fill_(1)
        self.squares.copy_(torch.linalg.vector_norm(self.running).square())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The state of `RunningClassMeans` says the same.
        running, seen = state_dict.get(f"{prefix}running"), state_dict.get(f"{prefix}seen")
        if isinstance(running, Tensor) and isinstance(seen, Tensor) and f"{prefix}scale" not in state_dict:
            state_dict[f"{prefix}scale"] = running.new_ones(1)
            state_dict[f"{prefix}squares"] = running.square().sum().view(1)
            state_dict[f"{prefix}num_seen"] = seen.sum()
        super()._load_from_state_dict(state_dict, prefix, *args)


def _present(centered_features: Tensor, labels: Tensor, global_mean: Tensor, num_classes: int) -> _Present:
    """The classes that a batch holds. Shapes do not depend on their number, so that nobody waits for the device to know it."""
    is_known = labels != LEFT_OUT
    # Samples that are left out go to the largest class that there is, and count for nothing.
    labels, order = torch.where(is_known, labels, labels.max().clamp(min=0)).sort(stable=True)
    is_known = is_known[order]
    is_new = torch.cat([labels.new_zeros(1), (labels[1:] != labels[:-1]).to(labels.dtype)])
    places = is_new.cumsum(0)
    counts = centered_features.new_zeros(len(labels)).index_add(0, places, is_known.to(centered_features.dtype))
    sums = torch.zeros_like(centered_features).index_add(0, places, torch.where(is_known[:, None], centered_features[order], 0.0))
    residue = sums.sum(dim=0) / counts.sum().clamp(min=1)
    means = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None] - residue, 0.0)
    rounding = smallest_norm(num_classes, global_mean, means.dtype)
    # NaN is no rounding error, and stays.
    means = torch.where(torch.linalg.vector_norm(means) <= rounding, 0.0, means)
    return _Present(labels[:1].expand(len(labels)).scatter(0, places, labels), counts, means)
