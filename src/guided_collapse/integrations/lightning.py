"""A callback for Lightning's Trainer."""

from importlib.util import find_spec
from typing import Any

from torch import nn

from guided_collapse.integrations.measurement import RepeatedMeasurement
from guided_collapse.lazy import optional
from guided_collapse.metrics.measure import Loader

# Lightning comes in two packages, and the trainer of each accepts only its own callbacks.
_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
_INSTALLED = [module for name, module in _PACKAGES.items() if find_spec(name)] or ["lightning.pytorch"]
_BASES = tuple(optional(module, extra="integrations").Callback for module in _INSTALLED)


class LightningCollapse(*_BASES):  # type: ignore[misc]  # known at run time
    """Measures how collapsed a model is at the end of an epoch, and logs the numbers to the trainer's loggers.

    `collapse_of` puts the model in eval mode, and back. Several processes share the batches, and all log the same numbers, those of
    a single process. The trainer itself calls `set_epoch` of a `StratifiedBatchSampler`.

    Args:
        loader: batches of all samples, the same in every process, without augmentation, as `collapse_of` takes them.
        every: measure every so many epochs.
        model: the model that takes the loader's inputs; None takes the LightningModule itself.
        test_loader: batches of other samples, judged by the class means of `loader`.
        classifier: the name of the last linear layer; None finds it.
        prefix: precedes the names of the numbers.
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
        """Measures and logs if it is due."""
        if (trainer.current_epoch + 1) % self.measurement.every == 0:
            pl_module.log_dict(self.measurement.scalars(pl_module if self.model is None else self.model), sync_dist=True)
