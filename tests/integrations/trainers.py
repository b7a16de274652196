"""A small model in the trainers of Lightning and transformers, with the callbacks that measure it."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

from guided_collapse import StratifiedBatchSampler, replace_classifier
from guided_collapse.integrations import LightningCollapse, TransformersCollapse

pixels, digits = load_digits(return_X_y=True)
INPUTS, LABELS = torch.tensor(pixels[:300], dtype=torch.float32) / 16, torch.tensor(digits[:300])
SAMPLES = TensorDataset(INPUTS, LABELS)
QUIET = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, 10))
    replace_classifier(model)
    return model


def clean_loader():
    return DataLoader(SAMPLES, batch_size=40)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = network()

    def forward(self, inputs):
        return self.model(inputs)

    def train_dataloader(self):
        return DataLoader(SAMPLES, batch_sampler=StratifiedBatchSampler(LABELS, batch_size=60))

    def training_step(self, batch, _):
        inputs, labels = batch
        with self.model[-1].labels(labels):
            return cross_entropy(self.model(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Recorder(lightning.pytorch.loggers.logger.DummyLogger):
    """A logger that keeps what it receives."""

    def __init__(self):
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append(dict(metrics))


def with_lightning(processes=1):
    """The model after three epochs, and what was logged of it after the second."""
    module, recorder = Module(), Recorder()
    states = []

    class Keep(lightning.pytorch.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            states.append({name: value.clone() for name, value in pl_module.model.state_dict().items()})

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        use_distributed_sampler=False,
        logger=recorder,
        log_every_n_steps=1,
        callbacks=[LightningCollapse(clean_loader(), every=2), Keep()],
        **QUIET,
    )
    trainer.fit(module)
    (logged,) = [line for line in recorder.logged if "collapse/nc1" in line] if trainer.is_global_zero else [{}]
    return states[1], {name: float(value) for name, value in logged.items() if name.startswith("collapse/")}


class ForTrainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = network()

    def forward(self, inputs, labels=None):
        if labels is None:
            return {"logits": self.model(inputs)}
        with self.model[-1].labels(labels):
            logits = self.model(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class StratifiedTrainer(Trainer):
    def get_train_dataloader(self):
        sampler = StratifiedBatchSampler(LABELS, batch_size=60)
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)


def with_transformers(folder):
    """The model after two epochs, what was logged of it then, and the orders of the two epochs."""
    examples = [{"inputs": inputs, "labels": int(label)} for inputs, label in SAMPLES]
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=2,
        learning_rate=1e-3,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = StratifiedTrainer(ForTrainer(), arguments, train_dataset=examples)
    loader = DataLoader(examples, batch_size=40, collate_fn=trainer.data_collator)
    trainer.add_callback(TransformersCollapse(trainer, loader, every=2))
    trainer.train()
    (logged,) = [line for line in trainer.state.log_history if "collapse/nc1" in line]
    numbers = {name: value for name, value in logged.items() if name.startswith("collapse/")}
    return trainer.model.model.state_dict(), numbers
