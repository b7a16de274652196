"""The training loop."""

import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import safetensors.torch
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.experiments import launch
from guided_collapse.experiments.backbones.pretrained import TimmBackbone, with_synchronized_batch_norm
from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.display import Display, Series
from guided_collapse.experiments.errors import DamageError, InputError, RequestError, requested
from guided_collapse.experiments.files import locked, write_bytes
from guided_collapse.experiments.measure import Measurement, TraceRecorder, measure
from guided_collapse.experiments.run import (
    LAST_CHECKPOINT,
    MARGINS,
    MODEL,
    TRACE,
    Checkpoint,
    EpochRecord,
    RunFacts,
    RunFolder,
    save_checkpoint,
)
from guided_collapse.experiments.tasks import OPTIMIZER, Task, build_model, build_task, head_of, random_generator
from guided_collapse.geometry import tight_frame_cross_entropy_bound
from guided_collapse.geometry.tight import can_be_centered
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.cosine import CosineHead
from guided_collapse.heads.head import FrameHead, Head
from guided_collapse.metrics.formulas import cross_entropy_lower_bound
from guided_collapse.optim.agd import AGD


def train(
    configuration: Configuration,
    placement: Placement,
    *,
    on_record: Callable[[EpochRecord], None] | None = None,
    anchors: Callable[[], Tensor] | None = None,
    series: Series | None = None,
) -> RunFolder:
    """Trains a run from the beginning or from its last checkpoint; leaves a finished run alone.

    Args:
        configuration: what to run.
        placement: where to run it.
        on_record: called by the first process with the record of every epoch that this call trains, for loggers.
        anchors: called for the rows of an anchored head if the run has no checkpoint; see `upgrade`.
        series: the runs that this one belongs to, for the display.

    Returns:
        The folder of the finished run.

    Raises:
        RequestError: for missing or unsuitable devices or data, or a folder that holds another run or is not writable.
        DamageError: for a folder with files of different runs, or a damaged run without an intact checkpoint.
        WorkError: if another process is using the folder, or one of several processes is lost.
    """
    configuration = configuration.resolved()
    run = RunFolder.of(configuration, placement.out)
    with requested():
        launch.check_launch(placement, configuration.precision)
        rows = None
        if configuration.upgrade_of is not None and not (run.path / LAST_CHECKPOINT).exists():
            if anchors is None:
                raise RequestError(f"{run.path} has no checkpoint with the rows of its head. Run: guided-collapse upgrade OLD_RUN")
            rows = anchors()
        configuration = run.as_here(configuration)
        run.check(configuration, lengthen=placement.lengthen)
        if run.is_finished(configuration):
            print(f"{configuration.title}: already finished", file=sys.stderr)
            return run
        with requested(InputError):
            task = build_task(configuration, num_workers=placement.num_workers, data_root=placement.data_root)
            # Rejects images that are too small, and weights that do not fit, before anything is written.
            task.backbone(random_generator(configuration.seed), fresh=not (run.path / LAST_CHECKPOINT).exists())
        run.path.mkdir(parents=True, exist_ok=True)
    fabric = launch.build_fabric(placement, configuration.precision)
    with launch.lost_peers_reported(fabric, run.path):
        fabric.launch()
    with locked(run.path) if fabric.is_global_zero else nullcontext():
        checkpoint = run.checkpoint(configuration)
        with launch.threads_as_before(checkpoint.facts.hardware if checkpoint else {}):
            if checkpoint is not None:
                rows = checkpoint.state["model"].get("head.rows")
            elif configuration.upgrade_of is not None and rows is None:
                raise DamageError(f"{run.path / LAST_CHECKPOINT} is damaged. Move the folder away and repeat the upgrade command.")
            with requested():
                training = Training(configuration, placement, run, task, fabric, rows, fresh=checkpoint is None)
            if checkpoint is not None:
                training.resume(checkpoint)
            training.on_record = on_record if fabric.is_global_zero else None
            training.series = series
            try:
                with launch.lost_peers_reported(fabric, run.path):
                    training.run_to_the_end()
            except Exception as error:
                if fabric.is_global_zero:
                    run.write_failure(error)
                raise
    return run


def loss_lower_bound(head: nn.Module) -> float | None:
    """Returns the lowest possible mean cross-entropy for classes of equal size.

    Returns None if the norms of the features or of the weight rows are not fixed.
    """
    if not isinstance(head, Head) or (isinstance(head, CosineHead) and not head.normalize_weight):
        return None
    if isinstance(head, FrameHead) and can_be_centered(head.feature_dim, head.num_classes):
        return tight_frame_cross_entropy_bound(head.feature_dim, head.num_classes, head.scale)
    return cross_entropy_lower_bound(head.num_classes, head.scale)  # with more than feature_dim + 1 classes, no head attains it


def build_optimizer(configuration: Configuration, model: Classifier) -> torch.optim.Optimizer:
    """Returns the optimizer that the configuration names; agd also sets the initial weights that its theory assumes."""
    if configuration.optimizer == "agd":
        optimizer = AGD(model.parameters(), gain=configuration.gain)
        optimizer.init_weights(random_generator(configuration.seed, OPTIMIZER))
        return optimizer
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained}]
    if configuration.backbone_rate != 1.0:
        slower = set(cast(TimmBackbone, model.backbone).model.parameters())
        groups = [{"params": [parameter for parameter in trained if parameter not in slower]}]
        groups.append({"params": [parameter for parameter in trained if parameter in slower], "rate": configuration.backbone_rate})
    asked = configuration.resolved()
    rate, decay = asked.learning_rate or 0.0, asked.weight_decay or 0.0
    if configuration.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=configuration.momentum, weight_decay=decay)
    return torch.optim.AdamW(groups, lr=rate, weight_decay=decay)


def learning_rate_factor(configuration: Configuration, progress: float) -> float:
    """Returns the multiplier of the initial learning rate after this fraction of all steps."""
    if configuration.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if configuration.schedule == "step":
        return 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
    return 1.0


class Training:
    """The training of a run in one of its processes."""

    def __init__(
        self,
        configuration: Configuration,
        placement: Placement,
        run: RunFolder,
        task: Task,
        fabric: Fabric,
        rows: Tensor | None = None,
        *,
        fresh: bool = True,
    ) -> None:
        self.configuration, self.placement, self.run, self.task, self.fabric = configuration, placement, run, task, fabric
        self.on_record: Callable[[EpochRecord], None] | None = None
        self.series: Series | None = None
        self.share = ProcessShare(fabric.global_rank, fabric.world_size, fabric.device)
        self.classifier = build_model(configuration, task, fabric.device, rows, fresh=fresh)
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            self.classifier = cast(Classifier, with_synchronized_batch_norm(self.classifier))
        optimizer = build_optimizer(configuration, self.classifier)
        self.model, self.optimizer = fabric.setup(self.classifier, optimizer)
        self.hardware = launch.hardware(fabric.device, fabric.world_size)
        self.facts = self._facts()
        self.records: list[EpochRecord] = []
        self.trace = TraceRecorder() if configuration.trace else None
        self.last_measurement: Measurement | None = None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Restores the state from a checkpoint."""
        self.classifier.load_state_dict(checkpoint.state["model"])
        self.optimizer.load_state_dict(checkpoint.state["optimizer"])
        torch.set_rng_state(checkpoint.state["random"])
        if self.trace is not None:
            vars(self.trace).update(checkpoint.state["trace"])
        self.facts = replace(checkpoint.facts, configuration=self.configuration.to_dict(), finished=None)
        self.records = checkpoint.records

    def run_to_the_end(self) -> None:
        """Trains the remaining epochs and writes the finished run."""
        if self.fabric.is_global_zero:
            self.run.begin(self.facts, self.records)
        if self.configuration.upgrade_of is not None and not self.records:
            self._save()  # from now on, this run can resume without the old run
        steps, last_saved = self.task.steps_per_epoch(), time.monotonic()
        first_epoch, last_epoch = len(self.records) + 1, self.configuration.epochs
        with Display(
            self.configuration.title,
            steps * last_epoch,
            steps * (first_epoch - 1),
            quiet=self.placement.quiet,
            silent=not self.fabric.is_global_zero,
            curves=self.run.path if self.placement.tensorboard else None,
            series=self.series,
        ) as display:
            devices = launch.describe_devices(self.hardware, self.facts.hardware)
            display.say(f"{self.task.summary}; from epoch {first_epoch} of {last_epoch} on {devices}")
            for epoch in range(first_epoch, last_epoch + 1):
                record = self.train_epoch(epoch, steps, display)
                first_or_last = epoch <= self.configuration.measure_first or epoch == last_epoch
                if first_or_last or epoch % self.configuration.measure_every == 0:
                    found = self.last_measurement = measure(self.classifier, self.task, self.share, self.fabric)
                    record = replace(record, train=found.train, test=found.test)
                    if self.trace is not None:
                        self.trace.add(epoch, self.classifier, self.task)
                display.add(record)
                if self.on_record is not None:
                    self.on_record(record)
                self.records.append(record)
                if epoch in (1, last_epoch) or time.monotonic() - last_saved >= self.placement.checkpoint_seconds:
                    self._save()
                    last_saved = time.monotonic()
        self._finish()

    def train_epoch(self, epoch: int, steps: int, display: Display) -> EpochRecord:
        """Trains for one epoch and returns its record, with the running loss and accuracy."""
        self.model.train()
        start = time.perf_counter()
        device = self.share.device
        loss_sum, correct, samples = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device), 0
        for step, (inputs, labels) in enumerate(self.task.training_batches(epoch, self.share)):
            if self.configuration.learning_rate is not None:
                done = ((epoch - 1) * steps + step) / (self.configuration.epochs * steps)
                for group in self.optimizer.param_groups:
                    rate = self.configuration.learning_rate * group.get("rate", 1.0)
                    group["lr"] = rate * learning_rate_factor(self.configuration, done)
            self.optimizer.zero_grad()
            logits = self.model(inputs, labels)
            loss = functional.cross_entropy(logits, labels)
            weight = 1.0
            if self.share.processes > 1:  # the parts may differ by one sample, but DDP gives every process the same weight
                total = self.fabric.all_reduce(torch.tensor(float(len(labels)), device=device), reduce_op="sum")
                weight = len(labels) * self.share.processes / float(torch.as_tensor(total))
            self.fabric.backward(loss * weight)
            self.optimizer.step()
            loss_sum += loss.detach() * len(labels)
            correct += (logits.detach().argmax(dim=1) == labels).sum()
            samples += len(labels)
            display.step(epoch, loss_sum, correct, samples)
        totals = [float(loss_sum), float(correct), float(samples)]
        if self.share.processes > 1:
            of_this_process = torch.tensor(totals, dtype=torch.float64, device=device)
            totals = torch.as_tensor(self.fabric.all_reduce(of_this_process, reduce_op="sum")).tolist()
        running = {"loss": totals[0] / totals[2], "top1": totals[1] / totals[2]}
        return EpochRecord(epoch, running=running, seconds=time.perf_counter() - start)

    def _facts(self) -> RunFacts:
        configuration = self.configuration
        return RunFacts(
            experiment=configuration.experiment,
            head=configuration.head,
            seed=configuration.seed,
            configuration=configuration.to_dict(),
            protocol=configuration.protocol,
            protocol_differences=tuple(configuration.protocol_differences),
            num_classes=self.task.num_classes,
            feature_dim=head_of(self.classifier).in_features,
            num_train=self.task.num_train,
            num_test=self.task.num_test,
            inputs=self.task.input_facts(),
            global_batch=min(configuration.batch_size, self.task.num_train),
            loss_lower_bound=loss_lower_bound(self.classifier.head),
            versions=launch.versions(),
            commit=launch.commit(),
            hardware=self.hardware,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _save(self) -> None:
        """Writes the records, then the checkpoint with a copy of them; a resume drops records newer than its checkpoint."""
        if not self.fabric.is_global_zero:
            return
        self.run.write_records(self.records)
        state = {"model": self.classifier.state_dict(), "optimizer": self.optimizer.state_dict(), "random": torch.get_rng_state()}
        if self.trace is not None:
            state["trace"] = vars(self.trace)
        save_checkpoint(self.run.path, self.facts, self.records, state)

    def _finish(self) -> None:
        """Writes margins, trace and model, and finally `config.json`, which marks the run as finished."""
        measurement = self.last_measurement or measure(self.classifier, self.task, self.share, self.fabric)
        if self.fabric.is_global_zero:
            self.run.write_arrays(MARGINS, measurement.margins)
            if self.trace is not None:
                self.run.write_arrays(TRACE, self.trace.arrays())
            tensors = {name: value.detach().cpu().contiguous() for name, value in self.classifier.state_dict().items()}
            write_bytes(self.run.path / MODEL, safetensors.torch.save(tensors))
            self.run.finish(self.facts)
        self.fabric.barrier()
