"""Collapse while the Hugging Face Trainer trains."""

from typing import Any

from guided_collapse.integrations.measurement import RepeatedMeasurement
from guided_collapse.metrics.model import Loader
from guided_collapse.lazy import optional
from guided_collapse.sampling.batch_sampler import SeededBatchSampler

TrainerCallback: Any = optional("transformers", extra="integrations").TrainerCallback


class TransformersCollapse(TrainerCallback):  # type: ignore[misc]  # known when it runs
    """A callback that measures how collapsed a model is, logs the numbers by the trainer, and calls `set_epoch` of the sampler.

    `trainer.add_callback(TransformersCollapse(trainer, loader))`. The model is measured in eval mode by `collapse_of` at the end of
    an epoch, and put back in its mode; the numbers go to `trainer.log`, so to all that `report_to` names. Under several processes
    each takes its share of the batches, and all log the same numbers, those that one process gives. A `StratifiedBatchSampler` of
    the training loader is told of every new epoch.

    Args:
        trainer: the one that the callback is added to.
        loader: this and all others as for `LightningCollapse`.
    """

    def __init__(
        self,
        trainer: Any,
        loader: Loader,
        every: int = 1,
        *,
        test_loader: Loader | None = None,
        classifier: str | None = None,
        prefix: str = "collapse/",
    ) -> None:
        self.trainer = trainer
        self.measurement = RepeatedMeasurement(loader, every, test_loader, classifier, prefix)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Gives the sampler a new order."""
        sampler = getattr(train_dataloader, "batch_sampler", None)
        if isinstance(sampler, SeededBatchSampler):
            sampler.set_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measures and logs, if it is time."""
        if self.measurement.is_due(round(state.epoch)):
            self.trainer.log(self.measurement.scalars(self.trainer.model))
