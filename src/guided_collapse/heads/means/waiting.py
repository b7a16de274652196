"""Points that a lagged head has classified and whose labels come after the forward pass."""

from torch import Tensor


def check_nothing_waits(waiting: Tensor | None) -> None:
    """Refuses another training batch while the labels of the one before are missing.

    Args:
        waiting: the points of that batch; None if there is none.

    Raises:
        RuntimeError: if there is such a batch.
    """
    if waiting is not None:
        raise RuntimeError(
            "a lagged head must take in every training batch before the next one; got a forward pass while the labels of the one "
            f"before, {len(waiting)} samples, are missing. Call head.update(labels) after each forward pass in training "
            "mode, or head.forget() to leave a batch out; under torch.no_grad() nothing has to be taken in."
        )


def waiting_points(waiting: Tensor | None) -> Tensor:
    """The points of the batch whose labels have come.

    Raises:
        RuntimeError: if there is none.
    """
    if waiting is None:
        raise RuntimeError(
            "head.update(labels) must follow a forward pass in training mode, with gradients and without labels; got none that "
            "waits. Call model(inputs) first, once for each update; a batch that came with labels is taken in already."
        )
    return waiting
