"""A callback for the Hugging Face Trainer."""

from typing import Any

from guided_collapse.integrations.measurement import RepeatedMeasurement
from guided_collapse.lazy import optional
from guided_collapse.metrics.measure import Loader
from guided_collapse.sampling import SeededBatchSampler

TrainerCallback: Any = optional("transformers", extra="integrations").TrainerCallback


class TransformersCollapse(TrainerCallback):  # type: ignore[misc]  # known at run time
    """A callback for the Hugging Face Trainer that measures neural collapse every few epochs and logs the metrics.

    Add it with `trainer.add_callback(TransformersCollapse(trainer, loader))`. The metrics go to `trainer.log`, and from there to
    everything in `report_to`. The callback also calls `set_epoch` of a `StratifiedBatchSampler`, because the trainer does not.

    Args:
        trainer: the trainer that the callback is added to.
        loader, every, test_loader, classifier, prefix: as for `LightningCollapse`.
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
        """Sets the epoch of the training batch sampler if it is one of this package."""
        sampler = getattr(train_dataloader, "batch_sampler", None)
        if isinstance(sampler, SeededBatchSampler):
            sampler.set_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measures and logs the metrics if `every` epochs have passed since the last time."""
        if round(state.epoch) % self.measurement.every == 0:
            self.trainer.log(self.measurement.scalars(self.trainer.model))
