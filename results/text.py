"""Writes CLINC150 as features, and trains heads jointly with token vectors.

    python -m results.text prepare --data clinc150.json --to clinc150.npz
    python -m results.text train --data clinc150.json
    python -m results.text out-of-scope RUNS --data clinc150.json

`prepare` writes the mean token vector of every query, for `guided-collapse search --features clinc150.npz`. `train` searches and
trains heads on trainable token vectors, and writes `results/records/clinc150-trained.json` after every run. `out-of-scope`
measures how well the runs of searches separate 1,000 queries without an intent from the test queries, and writes
`results/records/clinc150-out-of-scope.json`. The token vectors are those of the package wordllama (0.4.0.post1), of 256 dimensions.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse import Classifier, StratifiedBatchSampler
from guided_collapse.experiments import launch
from guided_collapse.experiments.backbones.neck import Neck
from guided_collapse.experiments.configuration import Configuration, HeadName
from guided_collapse.experiments.data.features import feature_statistics
from guided_collapse.experiments.data.split import Split, few_of_each, hold_out
from guided_collapse.experiments.export import Normalize, trained_model
from guided_collapse.experiments.files import write_json
from guided_collapse.experiments.grid_search import CHOSEN, settings_of
from guided_collapse.experiments.heads import build_head
from guided_collapse.experiments.presets import FEATURES
from guided_collapse.experiments.run import RunFolder, configuration_of
from guided_collapse.experiments.tasks import BACKBONE, HEAD, FeatureTask, build_task, random_generator
from guided_collapse.heads.head import Head
from results.token_vectors import token_vectors

RECORDS = Path(__file__).parent / "records"
HEADS: tuple[HeadName, ...] = ("linear", "cosine", "sphere-linear", "fixed-etf", "nearest-etf", "nearest-etf-lagged")
EPOCHS = {5: 40, 10: 30, 50: 10}  # by the number of queries per class; the same epochs as for frozen features
GRID: dict[str, list[float]] = {"learning_rate": [0.001, 0.003, 0.01], "scale": [5, 10, 20]}
TRIAL_SEED, SEEDS = 1000, (0, 1, 2, 3, 4)
NECK: dict[str, Any] = {"neck": "mlp", "feature_dim": 256}
SHARED = replace(FEATURES, **NECK).resolved()


class Texts(NamedTuple):
    """Queries as token numbers, (num_queries, longest query), padded with 0, and the vectors of the tokens."""

    parts: dict[str, Split]  # train, test and oos_test, whose queries have no intent
    vectors: Tensor  # of the tokens that occur, (num_tokens, 256)


def read(file: Path) -> Texts:
    """Returns the queries of CLINC150 in tokens of wordllama, with the vectors of the tokens."""
    tokenizer, vectors = token_vectors()
    tokenizer.enable_padding(pad_id=0)  # the unknown token, which no query contains
    texts = [(part, *pair) for part, pairs in json.loads(file.read_text()).items() for pair in pairs]
    encoded = tokenizer.encode_batch([text for _, text, _ in texts], add_special_tokens=False)
    occurring, tokens = torch.tensor([query.ids for query in encoded]).unique(return_inverse=True)
    intents = sorted({name for part, _, name in texts if part == "train"})
    labels = torch.tensor([intents.index(name) if name in intents else len(intents) for _, _, name in texts])
    parts = {}
    for part in ("train", "test", "oos_test"):
        chosen = torch.tensor([each == part for each, _, _ in texts]).nonzero().flatten()
        parts[part] = Split(tokens, labels).take(chosen)
    return Texts(parts, vectors[occurring].float())


def means(tokens: Tensor, vectors: Tensor) -> Tensor:
    """Returns the mean token vector of each query, (num_queries, 256)."""
    return functional.embedding_bag(tokens, vectors, mode="mean", padding_idx=0)


def prepare(file: Path, to: Path) -> None:
    """Writes the mean token vectors and the labels of the training and test queries to a file of features."""
    parts, vectors = read(file)
    arrays = {}
    for prefix, part in (("", parts["train"]), ("test_", parts["test"])):
        arrays[f"{prefix}features"], arrays[f"{prefix}labels"] = means(part.images, vectors).numpy(), part.labels.numpy()
    np.savez(to, **arrays)


class TrainedVectors(nn.Module):
    """The mean of trainable token vectors, normalized by the statistics of the frozen vectors, and a neck."""

    def __init__(self, vectors: Tensor, tokens: Tensor, neck: Neck) -> None:
        super().__init__()
        mean, self.std = feature_statistics(means(tokens, vectors))
        self.mean, self.neck = nn.Buffer(mean), neck
        self.vectors = nn.EmbeddingBag.from_pretrained(vectors.clone(), freeze=False, mode="mean", padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the features, (num_queries, 256)."""
        return self.neck((self.vectors(tokens) - self.mean) / self.std)


def new_model(configuration: Configuration, samples: Split, vectors: Tensor) -> Classifier:
    """Returns an untrained model; all heads with the same seed start from the same neck."""
    generators = [random_generator(configuration.seed, purpose) for purpose in (BACKBONE, HEAD)]
    neck = Neck(in_channels=256, generator=generators[0], **NECK)
    head = build_head(configuration, neck.feature_dim, int(samples.labels.max()) + 1, generators[1])
    return Classifier(TrainedVectors(vectors, samples.images, neck), head)


def fit(model: nn.Module, configuration: Configuration, samples: Split, loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Trains a model by AdamW on stratified batches; `loss_of` returns the loss for inputs and labels."""
    model.train()
    seed, epochs = configuration.seed, configuration.epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=configuration.learning_rate, weight_decay=configuration.weight_decay)
    sampler = StratifiedBatchSampler(samples.labels, configuration.batch_size, num_replicas=1, rank=0, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(sampler))
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for chosen in sampler:
            batch = samples.take(torch.tensor(chosen))
            optimizer.zero_grad()
            loss_of(batch.images, batch.labels).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def cross_entropy_of(model: Classifier) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function from inputs and labels to the cross-entropy of the model."""
    return lambda inputs, labels: functional.cross_entropy(model(inputs, labels), labels)


@torch.no_grad()
def tested(model: Classifier, train: Split, test: Split, others: Tensor) -> dict[str, float]:
    """Returns top-1, and how well (AUROC) the largest logit and the distance to the nearest class mean tell known queries apart."""
    features = [model.features(part) for part in (train.images, test.images, others)]
    if isinstance(model.head, Head):
        features = [model.head.on_sphere(part) for part in features]
    class_means = torch.stack([features[0][train.labels == label].mean(dim=0) for label in range(int(train.labels.max()) + 1)])
    logits = [model(part) for part in (test.images, others)]
    return {
        "top1": float((logits[0].argmax(dim=1) == test.labels).double().mean()),
        "auroc_max_logit": auroc(*(part.amax(dim=1) for part in logits)),
        "auroc_distance": auroc(*(-torch.cdist(part, class_means).amin(dim=1) for part in features[1:])),
    }


def auroc(known: Tensor, others: Tensor) -> float:
    """Returns the area under the ROC curve of known queries against others, by a score that should be larger for known ones."""
    is_known = [1] * len(known) + [0] * len(others)
    return round(float(roc_auc_score(is_known, torch.cat([known, others]).numpy())), 6)


def train(file: Path) -> None:
    """Searches and trains every head with 5, 10 and 50 queries per class, and records the results; completes an existing record."""
    place = RECORDS / "clinc150-trained.json"
    record: dict[str, Any] = {
        "command": f"python -m results.text train --data {file.name}",
        "epochs": {str(number): epochs for number, epochs in EPOCHS.items()},
        "grid": GRID,
        "versions": launch.versions() | {"wordllama": metadata.version("wordllama")},
        "commit": launch.commit(),
        "hardware": launch.hardware(torch.device("cpu"), 1),
        "choice": {},
        "trainings": [],
    }
    if place.exists():
        record = json.loads(place.read_text())
    parts, vectors = read(file)

    def run(number: int, head: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
        asked = {"per_class": number, "head": head, "settings": settings, "seed": seed}
        for done in record["trainings"]:
            if {key: done[key] for key in asked} == asked:
                return done["tests"]
        samples, queries = few_of_each(parts["train"], number), parts["test"]
        if seed == TRIAL_SEED:
            held = hold_out(samples.labels, len(samples) // 5, seed=None)
            samples, queries = samples.take(held.train), samples.take(held.test)
        configuration = replace(SHARED, head=head, seed=seed, epochs=EPOCHS[number], **settings)
        model = new_model(configuration, samples, vectors)
        fit(model, configuration, samples, cross_entropy_of(model))
        tests = tested(model, samples, queries, parts["oos_test"].images)
        record["trainings"].append(asked | {"tests": tests})
        write_json(place, record)
        print(number, head, settings, seed, tests, flush=True)
        return tests

    for number, head in product(EPOCHS, HEADS):
        choice = max(settings_of(head, GRID), key=lambda settings: run(number, head, settings, TRIAL_SEED)["top1"])
        record["choice"].setdefault(str(number), {})[head] = choice
        for seed in SEEDS:
            run(number, head, choice, seed)
    write_json(place, record)


def out_of_scope(file: Path, runs: Path) -> None:
    """Tests every run with a fresh seed of the CLINC150 searches in a folder, and records the results."""
    parts, vectors = read(file)
    others, found = means(parts["oos_test"].images, vectors), {}
    for config in sorted(runs.glob(f"clinc150-*-search/{CHOSEN}/*/*/*/config.json")):
        run = RunFolder(config.parent)
        facts, inputs = run.exportable()
        task, normalize = build_task(configuration_of(facts)), Normalize(inputs)
        assert isinstance(task, FeatureTask)
        train, test = (Split(normalize(part.images), part.labels) for part in (task.data.train, task.data.test))
        name = f"{facts.experiment}/{facts.head}/seed-{facts.seed}"
        found[name] = tested(trained_model(run), train, test, normalize(others))
    command = f"python -m results.text out-of-scope RUNS --data {file.name}"
    write_json(RECORDS / "clinc150-out-of-scope.json", {"command": command, "runs": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m results.text", description=__doc__)
    parser.add_argument("action", choices=["prepare", "train", "out-of-scope"])
    parser.add_argument("runs", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=Path("clinc150.npz"))
    wanted = parser.parse_args()
    if wanted.action == "prepare":
        prepare(wanted.data, wanted.to)
    elif wanted.action == "train":
        train(wanted.data)
    else:
        out_of_scope(wanted.data, wanted.runs)
