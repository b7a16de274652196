"""Batches that a lagged head has classified and whose labels come after the forward pass."""

from typing import NamedTuple

from torch import Tensor


class WaitingBatch(NamedTuple):
    """A batch that was classified without labels and is yet to be taken in; both are without gradient."""

    centred: Tensor
    """The points minus their global mean, (num_samples, feature_dim)."""
    global_mean: Tensor
    """The mean of the points over the batches of all processes, (feature_dim,)."""


def check_nothing_waits(waiting: WaitingBatch | None) -> None:
    """Refuses another training batch while the labels of the one before are missing.

    Raises:
        RuntimeError: if there is such a batch.
    """
    if waiting is not None:
        raise RuntimeError(
            "a lagged head must take in every training batch before the next one; got a forward pass while the labels of the one "
            f"before, {len(waiting.centred)} samples, are missing. Call head.update(labels) after each forward pass in training "
            "mode, or head.forget() to leave a batch out; under torch.no_grad() nothing has to be taken in."
        )


def waiting_batch(waiting: WaitingBatch | None) -> WaitingBatch:
    """The batch whose labels have come.

    Raises:
        RuntimeError: if there is none.
    """
    if waiting is None:
        raise RuntimeError(
            "head.update(labels) must follow a forward pass in training mode, with gradients and without labels; got none that "
            "waits. Call model(inputs) first, once for each update; a batch that came with labels is taken in already."
        )
    return waiting
