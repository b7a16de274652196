"""CLINC150 as features, and heads on token vectors that are trained with them.

    python -m results.text prepare --data clinc150.json --to clinc150.npz
    python -m results.text train --data clinc150.json
    python -m results.text out-of-scope --data clinc150.json RUNS

`prepare` writes the mean token vector of every query, for `guided-collapse search --features clinc150.npz`. `train` searches and
trains heads on token vectors that learn, and writes `results/records/clinc150-trained.json` after every training. `out-of-scope`
measures how well the runs of a search tell 1,000 queries without an intent from the test queries, and writes
`results/records/clinc150-out-of-scope.json`. The token vectors are those of the package wordllama (0.4.0.post1), of 256 dimensions.
"""

import argparse
import json
from collections.abc import Sequence
from functools import cache
from importlib import metadata, resources
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse import Classifier, CosineHead, FixedETFHead, NearestETFHead
from guided_collapse.experiments import launch
from guided_collapse.experiments.data.split import hold_out
from guided_collapse.experiments.export import Normalize, trained_model
from guided_collapse.experiments.files import write_json
from guided_collapse.experiments.grid_search import CHOSEN
from guided_collapse.experiments.run import RunFolder, configuration_of
from guided_collapse.experiments.tasks import FeatureTask, build_task
from guided_collapse.heads.head import Head

RECORDS = Path(__file__).parent / "records"
HEADS = {
    "linear": lambda scale: nn.Linear(256, 150),
    "cosine": lambda scale: CosineHead(256, 150, scale=scale, center=True),
    "sphere-linear": lambda scale: CosineHead(256, 150, scale=scale, center=True, normalize_weight=False),
    "fixed-etf": lambda scale: FixedETFHead(256, 150, scale=scale),
    "nearest-etf": lambda scale: NearestETFHead(256, 150, scale=scale),
    "nearest-etf-lagged": lambda scale: NearestETFHead(256, 150, scale=scale, lagged=True),
}
EPOCHS = {5: 40, 10: 30, 50: 10}  # by queries of each class
RATES, SCALES = (1e-3, 3e-3), (8.0, 16.0)
TRIAL_SEED, SEEDS, BATCH_SIZE = 1000, (0, 1, 2, 3, 4), 64


class Queries(NamedTuple):
    """The tokens of queries, one after another; where each query starts; and its class, or 150 without an intent."""

    tokens: Tensor
    starts: Tensor
    labels: Tensor

    def take(self, chosen: Tensor) -> "Queries":
        """The queries with these indices."""
        ends = torch.cat([self.starts[1:], torch.tensor([len(self.tokens)])])
        parts = [self.tokens[self.starts[index] : ends[index]] for index in chosen.tolist()]
        lengths = torch.tensor([0, *(len(part) for part in parts)])
        return Queries(torch.cat(parts), lengths.cumsum(0)[:-1], self.labels[chosen])


@cache
def token_vectors() -> Tensor:
    """The vectors, (num_tokens, 256)."""
    (vectors,) = load_file(str(resources.files("wordllama") / "weights" / "l2_supercat_256.safetensors")).values()
    return vectors.float()


def read(file: Path) -> dict[str, Queries]:
    """The parts train, test and oos_test, which are queries without an intent."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resources.files("wordllama") / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = json.loads(file.read_text())
    classes = {name: number for number, name in enumerate(sorted({name for _, name in texts["train"]}))}
    parts = {}
    for part in ("train", "test", "oos_test"):
        found = [encoded.ids for encoded in tokenizer.encode_batch([text for text, _ in texts[part]], add_special_tokens=False)]
        starts = torch.tensor([0, *(len(ids) for ids in found)]).cumsum(0)[:-1]
        labels = torch.tensor([classes.get(name, len(classes)) for _, name in texts[part]])
        parts[part] = Queries(torch.tensor([token for ids in found for token in ids]), starts, labels)
    return parts


def means(queries: Queries) -> Tensor:
    """The mean token vector of each query, (num_queries, 256)."""
    return functional.embedding_bag(queries.tokens, token_vectors(), queries.starts, mode="mean")


def prepare(file: Path, to: Path) -> None:
    """Writes the file of features."""
    parts = read(file)
    arrays = {f"{prefix}{name}": value for prefix, part in (("", "train"), ("test_", "test")) for name, value in
              (("features", means(parts[part])), ("labels", parts[part].labels))}  # fmt: skip
    np.savez(to, **{name: array.numpy() for name, array in arrays.items()})


class TrainedVectors(nn.Module):
    """The mean of token vectors that learn, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag.from_pretrained(token_vectors().clone(), freeze=False, mode="mean")
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
        rows = token_vectors()
        self.shift, self.factor = nn.Buffer(rows.mean(dim=0)), nn.Buffer(1 / (rows - rows.mean(dim=0)).std())

    def forward(self, queries: Queries) -> Tensor:
        """The features, (num_queries, 256)."""
        return self.layers((self.vectors(queries.tokens, queries.starts) - self.shift) * self.factor)


def fitted(head: str, samples: Queries, *, rate: float, scale: float | None, epochs: int, seed: int) -> Classifier:
    """A trained model."""
    torch.manual_seed(seed)
    model = Classifier(TrainedVectors(), HEADS[head](scale))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    steps = epochs * (len(samples.labels) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(samples.labels)).split(BATCH_SIZE)[: steps // epochs]:
            batch = samples.take(chosen)
            loss = functional.cross_entropy(model(batch, batch.labels), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def tested(model: Classifier, train: Any, test: Any, others: Any, labels: Tensor, test_labels: Tensor) -> dict[str, float]:
    """Top-1 accuracy, and how well the largest logit and the distance to the nearest class mean tell queries without an intent."""
    features = [model.features(part) for part in (train, test, others)]
    if isinstance(model.head, Head):
        features = [model.head.on_sphere(part) for part in features]
    class_means = torch.stack([features[0][labels == label].mean(dim=0) for label in range(150)])
    logits = [model(part) for part in (test, others)]
    return {
        "top1": float((logits[0].argmax(dim=1) == test_labels).double().mean()),
        "auroc_max_logit": auroc(*(part.amax(dim=1) for part in logits)),
        "auroc_distance": auroc(*(-torch.cdist(part, class_means).amin(dim=1) for part in features[1:])),
    }


def auroc(known: Tensor, others: Tensor) -> float:
    """The area under the curve of known queries against others, by a score that should be larger for known ones."""
    is_known = [1] * len(known) + [0] * len(others)
    return round(float(roc_auc_score(is_known, torch.cat([known, others]).numpy())), 6)


def train(file: Path) -> None:
    """Searches and trains every head, with 5, 10 and 50 queries of each class; continues a record."""
    place = RECORDS / "clinc150-trained.json"
    record: dict[str, Any] = {
        "command": f"python -m results.text train --data {file.name}",
        "epochs": {str(number): epochs for number, epochs in EPOCHS.items()},
        "versions": launch.versions() | {"wordllama": metadata.version("wordllama")},
        "commit": launch.commit(),
        "hardware": launch.hardware(torch.device("cpu"), 1),
        "choice": {},
        "trainings": [],
    }
    if place.exists():
        record = json.loads(place.read_text())
    parts = read(file)

    def run(number: int, head: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
        asked = {"per_class": number, "head": head, "settings": settings, "seed": seed}
        for done in record["trainings"]:
            if {key: done[key] for key in asked} == asked:
                return done["tests"]
        samples, queries = few_of_each(parts["train"], number), parts["test"]
        if seed == TRIAL_SEED:
            held = hold_out(samples.labels, len(samples.labels) // 5, seed=None)
            samples, queries = samples.take(held.train), samples.take(held.test)
        model = fitted(head, samples, rate=settings["rate"], scale=settings.get("scale"), epochs=EPOCHS[number], seed=seed)
        tests = tested(model, samples, queries, parts["oos_test"], samples.labels, queries.labels)
        record["trainings"].append(asked | {"tests": tests})
        write_json(place, record)
        print(number, head, settings, seed, tests, flush=True)
        return tests

    for number, head in product(EPOCHS, HEADS):
        scales: Sequence[dict[str, Any]] = [{}] if head == "linear" else [{"scale": scale} for scale in SCALES]
        tried = [{"rate": rate} | scale for rate, scale in product(RATES, scales)]
        choice = max(tried, key=lambda settings: run(number, head, settings, TRIAL_SEED)["top1"])
        record["choice"].setdefault(str(number), {})[head] = choice
        for seed in SEEDS:
            run(number, head, choice, seed)
    write_json(place, record)


def few_of_each(queries: Queries, number: int) -> Queries:
    """That many queries of each class, always the same."""
    order = [torch.nonzero(queries.labels == label).flatten()[:number] for label in range(150)]
    return queries.take(torch.cat(order))


def out_of_scope(file: Path, runs: Path) -> None:
    """Measures every run with fresh seeds of the searches in a folder."""
    others, found = means(read(file)["oos_test"]), {}
    for config in sorted(runs.glob(f"*-search/{CHOSEN}/*/*/*/config.json")):
        run = RunFolder(config.parent)
        facts, inputs = run.exportable()
        task = build_task(configuration_of(facts))
        assert isinstance(task, FeatureTask)
        normalize = Normalize(inputs)
        parts = [normalize(part) for part in (task.data.train.images, task.data.test.images, others)]
        name = f"{facts.experiment}/{facts.head}/seed-{facts.seed}"
        found[name] = tested(trained_model(run), *parts, task.data.train.labels, task.data.test.labels)
    command = f"python -m results.text out-of-scope --data {file.name} RUNS"
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
