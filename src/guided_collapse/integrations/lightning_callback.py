"""Collapse while Lightning's Trainer trains."""

from importlib.util import find_spec
from typing import Any

from torch import nn

from guided_collapse.integrations.measurement import RepeatedMeasurement
from guided_collapse.metrics.model import Loader
from guided_collapse.lazy import optional

PACKAGES = [name for name in ("lightning", "pytorch_lightning") if find_spec(name)] or ["lightning"]
# Lightning comes under two names, whose trainers know their own callbacks alone.
_MODULES = ["lightning.pytorch" if name == "lightning" else name for name in PACKAGES]
BASES = tuple(optional(name, extra="integrations").Callback for name in _MODULES)


class LightningCollapse(*BASES):  # type: ignore[misc]  # known when it runs
    """A callback that measures how collapsed a model is and logs the numbers to whatever loggers the trainer has.

    The model is measured in eval mode by `collapse_of` at the end of an epoch, and put back in its mode. Under several processes
    each takes its share of the batches, and all log the same numbers, those that one process gives. The trainer itself calls
    `set_epoch` of a `StratifiedBatchSampler`.

    Args:
        loader: batches of all samples, the same ones in every process, without augmentation, as `collapse_of` takes them.
        every: after how many epochs it is measured again.
        model: the model that takes the loader's inputs; None takes the LightningModule itself.
        test_loader: batches of other samples, judged by the class means of `loader`.
        classifier: the name of the last linear layer; None for a model with a head of this package.
        prefix: what the names of the numbers begin with.
    """

    def __init__(
        self,
        loader: Loader,
        every: int = 1,
        *,
        model: nn.Module | None = None,
        test_loader: Loader | None = None,
        classifier: str | None = None,
        prefix: str = "collapse/",
    ) -> None:
        super().__init__()
        self.model = model
        self.measurement = RepeatedMeasurement(loader, every, test_loader, classifier, prefix)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measures and logs, if it is time."""
        if self.measurement.is_due(trainer.current_epoch + 1):
            pl_module.log_dict(self.measurement.scalars(pl_module if self.model is None else self.model), sync_dist=True)
