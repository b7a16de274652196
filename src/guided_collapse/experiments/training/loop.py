"""The training loop."""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import safetensors.torch
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.records import schema
from guided_collapse.experiments.records.schema import EpochRecord, RunFacts
from guided_collapse.experiments.training import environment
from guided_collapse.experiments.training.build import build_model, build_optimizer, loss_lower_bound, set_learning_rate
from guided_collapse.experiments.training.display import Curves, Display
from guided_collapse.experiments.training.folder.checkpoint import not_a_checkpoint, save_checkpoint
from guided_collapse.experiments.training.folder.facts import Facts, hardware_of
from guided_collapse.experiments.training.folder.lock import locked
from guided_collapse.experiments.training.folder.progress import (
    Progress,
    has_come_to_its_end,
    read_progress,
    tell_of_a_lost_checkpoint,
)
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.training.launch import build_fabric, check_launch, peers_named
from guided_collapse.experiments.training.measure import Measurement, measure
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.configuration import Placement
from guided_collapse.experiments.training.tasks import Task, build_task
from guided_collapse.experiments.training.trace import TraceRecorder

OnRecord = Callable[[EpochRecord], None]


def train(configuration: Configuration, placement: Placement, *, on_record: OnRecord | None = None) -> RunFolder:
    """Runs the configuration from where it is: from the beginning, from its last checkpoint, or not at all if it is finished.

    Args:
        configuration: what to run.
        placement: where to run it.
        on_record: called with the record of every epoch that is trained here, by the first of several processes, for loggers.

    Returns:
        The folder of the finished run.

    Raises:
        MissingData: if the data are not there.
        RequestError: for devices that are not there, a configuration that does not fit the data, or a folder that has a run of
            another configuration or cannot be written.
        DamageError: for a folder whose files do not belong together, or with a finished run that is damaged or to be longer and
            has no whole checkpoint.
        WorkError: if another process is at work in the folder, or one of several is lost.
    """
    configuration = configuration.resolved()
    run = RunFolder.of(configuration, placement.out)
    with requested():
        check_launch(placement, configuration.precision)
        run.prepare(configuration, lengthen=placement.lengthen)
        if has_come_to_its_end(run, configuration):
            tell_of_a_lost_checkpoint(run, configuration)
            print(f"{configuration.title}: finished already", file=sys.stderr)
            return run
        task = build_task(configuration, num_workers=placement.num_workers, data_root=placement.data_root)
    fabric = build_fabric(placement, configuration.precision)
    with peers_named(fabric, run.path):
        fabric.launch()
    with locked(run.path) if fabric.is_global_zero else nullcontext():
        _train_in_locked_folder(configuration, placement, run, task, fabric, on_record)
    return run


def _train_in_locked_folder(
    configuration: Configuration, placement: Placement, run: RunFolder, task: Task, fabric: Fabric, on_record: OnRecord | None
) -> None:
    """Goes on from the last checkpoint, or begins; what fails on the way is recorded in the folder."""
    progress = read_progress(run, configuration)
    with environment.as_many_threads_as(hardware_of(progress.facts) if progress else None):
        with requested():
            training = Training(configuration, placement, run, task, fabric, on_record)
        if progress is not None:
            training.take_up(progress)
        # Up to here nothing in the folder has been changed.
        try:
            with peers_named(fabric, run.path):
                training.run_to_the_end()
        except Exception as error:
            if fabric.is_global_zero:
                run.write_failure(error)
            raise


@dataclass
class _Running:
    """Loss and accuracy as seen while training, over this process's samples."""

    loss: Tensor
    correct: Tensor
    samples: int = 0

    @classmethod
    def start(cls, device: torch.device) -> "_Running":
        return cls(torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device))

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.loss += loss.detach() * len(labels)
        self.correct += (logits.detach().argmax(dim=1) == labels).sum()
        self.samples += len(labels)

    def averages(self) -> tuple[float, float]:
        return float(self.loss) / self.samples, int(self.correct) / self.samples


class Training:
    """One run in one process."""

    def __init__(
        self,
        configuration: Configuration,
        placement: Placement,
        run: RunFolder,
        task: Task,
        fabric: Fabric,
        on_record: OnRecord | None = None,
    ) -> None:
        self.on_record = on_record if fabric.is_global_zero else None
        self.configuration = configuration
        self.placement = placement
        self.run = run
        self.task = task
        self.fabric = fabric
        self.share = ProcessShare(fabric.global_rank, fabric.world_size, fabric.device)
        self.classifier = build_model(configuration, task, fabric.device)
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            self.classifier = nn.SyncBatchNorm.convert_sync_batchnorm(self.classifier)  # type: ignore[no-untyped-call]
        optimizer = build_optimizer(configuration, self.classifier.parameters())
        self.model, self.optimizer = fabric.setup(self.classifier, optimizer)
        self.facts: Facts = {}
        self.records: list[EpochRecord] = []
        self.trace = TraceRecorder() if configuration.trace else None
        self.finished_epochs = 0
        self.margins: Measurement | None = None

    def take_up(self, progress: Progress) -> None:
        """Becomes what the run was at its checkpoint.

        Raises:
            DamageError: for the checkpoint of another run.
        """
        try:
            self.classifier.load_state_dict(progress.state["model"])
            self.optimizer.load_state_dict(progress.state["optimizer"])
            torch.set_rng_state(progress.state["random"])
            if self.trace is not None:
                self.trace.restore(progress.state["trace"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise not_a_checkpoint(progress.file, str(error)) from error
        self.facts = progress.facts
        self.records = progress.records
        self.finished_epochs = progress.epoch

    def run_to_the_end(self) -> None:
        """Trains from where the run is, and writes the finished model."""
        if self.fabric.is_global_zero:
            self._settle_in()
        steps = self.task.steps_per_epoch()
        last_epoch = self.configuration.epochs
        display = Display(
            self.configuration.title,
            steps * last_epoch,
            steps * self.finished_epochs,
            quiet=self.placement.quiet,
            silent=not self.fabric.is_global_zero,
        )
        curves = Curves(self.run.path if self.placement.tensorboard and self.fabric.is_global_zero else None)
        last_saved = time.monotonic()
        with curves, display:
            begun = hardware_of(self.facts) if self.facts else None
            devices = environment.devices_in_words(self.share.device, self.share.processes, begun)
            display.begins(self.finished_epochs + 1, last_epoch, devices)
            for epoch in range(self.finished_epochs + 1, last_epoch + 1):
                record = self.train_epoch(epoch, steps, display)
                if self._is_measured(epoch):
                    record = self._measure(record)
                    display.measured(record)
                curves.add(record)
                if self.on_record is not None:
                    self.on_record(record)
                self.records.append(record)
                self.finished_epochs = epoch
                overdue = time.monotonic() - last_saved >= self.placement.checkpoint_seconds
                if epoch in (1, last_epoch) or overdue:
                    self._save()
                    last_saved = time.monotonic()
        self._finish()

    def _settle_in(self) -> None:
        """Leaves the folder as it is to be before an epoch: with the facts and the records that the run goes on from."""
        self.run.clear()
        if self.facts:
            self.facts = self.run.go_on(self.configuration, self.facts, self.records)
        else:
            self.facts = self.run.begin(self._facts())

    def train_epoch(self, epoch: int, steps: int, display: Display) -> EpochRecord:
        """Trains on every batch of the epoch once; the record says how that looked on the way."""
        self.model.train()
        start = time.perf_counter()
        running = _Running.start(self.share.device)
        for step, (inputs, labels) in enumerate(self.task.training_batches(epoch, self.share)):
            done = ((epoch - 1) * steps + step) / (self.configuration.epochs * steps)
            set_learning_rate(self.optimizer, self.configuration, done)
            self.optimizer.zero_grad()
            logits = self.model(inputs, labels)
            loss = functional.cross_entropy(logits, labels)
            self.fabric.backward(loss * self._weight_of_this_process(len(labels)))
            self.optimizer.step()
            running.add(loss, logits, labels)
            if display.step(len(labels) * self.share.processes):
                display.show(epoch, *running.averages())
        loss_now, top1 = self._averages_of_all(running)
        return EpochRecord(epoch, running={"loss": loss_now, "top1": top1}, seconds=time.perf_counter() - start)

    def _weight_of_this_process(self, num_samples: int) -> float:
        """What makes the mean over processes that of the global batch, though their parts may differ by a sample."""
        if self.share.processes == 1:
            return 1.0
        total = self.fabric.all_reduce(torch.tensor(float(num_samples), device=self.share.device), reduce_op="sum")
        return num_samples * self.share.processes / float(torch.as_tensor(total))

    def _averages_of_all(self, running: _Running) -> tuple[float, float]:
        if self.share.processes == 1:
            return running.averages()
        totals = torch.stack(
            [running.loss.double(), running.correct.double(), torch.tensor(running.samples).to(running.loss).double()]
        )
        loss, correct, samples = torch.as_tensor(self.fabric.all_reduce(totals, reduce_op="sum")).tolist()
        return loss / samples, correct / samples

    def _is_measured(self, epoch: int) -> bool:
        first_or_last = epoch <= self.configuration.measure_first or epoch == self.configuration.epochs
        return first_or_last or epoch % self.configuration.measure_every == 0

    def _measure(self, record: EpochRecord) -> EpochRecord:
        measurement = measure(self.classifier, self.task, self.share, self.fabric)
        if self.trace is not None:
            self.trace.add(record.epoch, self.classifier, self.task, self.share)
        self.margins = measurement
        return replace(record, train=measurement.train, test=measurement.test)

    def _facts(self) -> RunFacts:
        head = self.classifier.head
        inputs = self.task.input_facts()
        return RunFacts(
            experiment=self.configuration.experiment,
            head=self.configuration.head,
            seed=self.configuration.seed,
            configuration=self.configuration.to_dict(),
            protocol=self.configuration.protocol,
            protocol_differences=tuple(self.configuration.protocol_differences),
            num_classes=head.num_classes,
            feature_dim=head.feature_dim,
            num_train=self.task.num_train,
            num_test=self.task.num_test,
            inputs=None if inputs is None else inputs.to_json(),
            global_batch=min(self.configuration.batch_size, self.task.num_train),
            loss_lower_bound=loss_lower_bound(head),
            versions=environment.versions(),
            commit=environment.commit(),
            hardware=environment.hardware(self.share.device, self.share.processes).to_json(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _save(self) -> None:
        """Records first, then the checkpoint, which has them too: a resume cuts off those that it does not know."""
        if not self.fabric.is_global_zero:
            return
        self.run.write_records(self.records)
        state: dict[str, Any] = {
            "epoch": self.finished_epochs,
            "facts": self.facts,
            "records": [record.to_json() for record in self.records],
            "model": self.classifier.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.trace is not None:
            state["trace"] = self.trace.state()
        save_checkpoint(self.run.path, state)

    def _finish(self) -> None:
        """Margins and the trace, then the model, whose seal says that the run is finished."""
        measurement = self.margins or measure(self.classifier, self.task, self.share, self.fabric)
        if self.fabric.is_global_zero:
            self.run.write_arrays(schema.MARGINS, measurement.margins)
            if self.trace is not None:
                self.run.write_arrays(schema.TRACE, self.trace.arrays())
            tensors = {name: value.detach().cpu().contiguous() for name, value in self.classifier.state_dict().items()}
            self.run.write_model(safetensors.torch.save(tensors), self.facts)
            (self.run.path / schema.PREVIOUS_CHECKPOINT).unlink(missing_ok=True)
        self.fabric.barrier()
