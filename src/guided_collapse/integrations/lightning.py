"""A callback for Lightning's Trainer."""

from importlib.util import find_spec
from typing import Any

from torch import nn

from guided_collapse.integrations.measurement import RepeatedMeasurement
from guided_collapse.lazy import optional
from guided_collapse.metrics.measure import Loader

# Lightning has two packages, whose trainers accept only their own callbacks.
_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
_INSTALLED = [module for name, module in _PACKAGES.items() if find_spec(name)] or ["lightning.pytorch"]
_BASES = tuple(optional(module, extra="integrations").Callback for module in _INSTALLED)


class LightningCollapse(*_BASES):  # type: ignore[misc]  # known at run time
    """A Lightning callback that measures neural collapse every few epochs and logs the metrics to the trainer's loggers.

    It measures with `collapse_of`, in eval mode. Several processes share the batches, and all of them log the metrics of the whole
    data set.

    Args:
        loader: batches of (inputs, labels), without augmentation, the same in every process.
        every: number of epochs between measurements.
        model: the model that takes the inputs; if None, the LightningModule itself.
        test_loader: batches of test samples, judged by the class means of `loader`.
        classifier: the name of the last linear layer; if None, it is found as in `replace_classifier`.
        prefix: the prefix of metric names.
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
        """Measures and logs the metrics if `every` epochs have passed since the last time."""
        if (trainer.current_epoch + 1) % self.measurement.every == 0:
            pl_module.log_dict(self.measurement.scalars(pl_module if self.model is None else self.model), sync_dist=True)
