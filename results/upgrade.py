"""Measures how well queries of a new model find their class in a gallery that an older model embedded.

    python -m results.upgrade clinc150 --data clinc150.json
    python -m results.upgrade omniglot --data images_background_small1.zip
    python -m results.upgrade tiny-imagenet --data tiny-imagenet-100.tar.gz
    python -m results.upgrade tiny-imagenet-smaller --data tiny-imagenet-100.tar.gz

Each writes `results/records/upgrade-NAME.json` after every run, and continues an interrupted record. CLINC150 needs the token
vectors of the package wordllama (0.4.0.post1).

The protocol: every method tries the same small grid on validation samples, with seed 1000; the best setting is trained with five
fresh seeds and tested once. (On Tiny ImageNet the grid has one learning rate.) The gallery is the training samples, embedded by the
old model (new/old) or by the new one (new/new), and all comparisons are by cosine in 64 dimensions. The old model is trained with
nn.Linear on the classes that it knows, at the learning rate that its own validation chose; each seed has its own old model.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse import AnchoredHead, Classifier, CosineHead, compatibility_loss
from guided_collapse.experiments import launch
from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.data import Augmentation
from guided_collapse.experiments.data.archives import load_archive
from guided_collapse.experiments.data.augment import PixelStatistics, augment, normalize, resize
from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.data.split import Split, hold_out
from guided_collapse.experiments.files import write_json
from results.token_vectors import token_vectors

RECORDS = Path(__file__).parent / "records"
FEATURE_DIM = 64
TRIAL_SEED, SEEDS = 1000, (0, 1, 2, 3, 4)

Settings = dict[str, float]
Tests = dict[str, dict[str, float]]


class Samples(NamedTuple):
    """Labeled samples for training, which are the gallery, and queries; and which classes the old model knows."""

    inputs: Tensor
    labels: Tensor
    queries: Tensor
    query_labels: Tensor
    known: Tensor  # bool (num_classes,)


class Data(NamedTuple):
    """Samples for trials, whose queries are validation samples, and for final runs, whose queries are test samples."""

    trial: Samples
    final: Samples
    prepare: Callable[[Tensor, torch.Generator | None], Tensor]  # network inputs; augmented if there is a generator


@dataclass(frozen=True)
class Study:
    """One data set, an old network and a new one."""

    load: Callable[[Path], Data]
    old: Callable[[], nn.Module]
    new: Callable[[], nn.Module]
    epochs: int
    batch_size: int = 128
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)  # the grid: learning rates, and factors on the cosine
    scales: tuple[float, ...] = (3.0, 5.0, 8.0, 12.0, 20.0)
    weights: tuple[float, ...] = (1.0, 4.0, 16.0)  # of the pulling loss in addition to the head's


def load_clinc150(file: Path) -> Data:
    """Loads CLINC150: means of 256-dimensional token vectors, standardized; the old model knows every second intent."""
    tokenizer, vectors = token_vectors()
    texts = json.loads(file.read_text())
    classes = {name: number for number, name in enumerate(sorted({name for _, name in texts["train"]}))}

    def read(part: str) -> tuple[Tensor, Tensor]:
        tokens = tokenizer.encode_batch([text for text, _ in texts[part]], add_special_tokens=False)
        means = [vectors[torch.tensor(found.ids)].float().mean(dim=0) for found in tokens]
        return torch.stack(means), torch.tensor([classes[name] for _, name in texts[part]])

    inputs, labels = read("train")
    std, mean = torch.std_mean(inputs, dim=0)
    known = torch.arange(len(classes)) % 2 == 0
    trial, final = (Samples(inputs, labels, *read(part), known) for part in ("val", "test"))
    return Data(trial, final, lambda inputs, _: (inputs - mean) / std)


def load_images(file: Path, name: str, *, size: int, padding: int, knows: Callable[[int, str], bool]) -> Data:
    """Loads a named data set; `knows` takes a class's number and name and returns whether the old model was trained on it."""
    archive = next(iter(KNOWN[name].archives))
    data = load_archive(file, name=name, known=KNOWN[name], archive=archive)
    train, test = (Split(resize(split.images, size), split.labels) for split in (data.train, data.test))  # type: ignore[arg-type]
    known = torch.tensor([knows(number, name) for number, name in enumerate(data.class_names)])
    parts = hold_out(train.labels, len(train) // 5, seed=None)
    fitted, held = train.take(parts.train), train.take(parts.test)
    trial, final = (
        Samples(gallery.images, gallery.labels, queries.images, queries.labels, known)  # type: ignore[arg-type]
        for gallery, queries in ((fitted, held), (train, test))
    )
    statistics_ = PixelStatistics(KNOWN[name].mean, KNOWN[name].std)

    def prepare(images: Tensor, source: torch.Generator | None) -> Tensor:
        changed = images if source is None else augment(images, Augmentation(crop_padding=padding), source)
        return normalize(changed, *statistics_)

    return Data(trial, final, prepare)


def load_omniglot(file: Path) -> Data:
    """Loads Omniglot at 20 x 20; the old model knows the first three of five alphabets."""
    unknown = ("Korean", "Latin")
    return load_images(file, "omniglot-small1", size=20, padding=2, knows=lambda _, name: not name.startswith(unknown))


def load_tiny_imagenet(file: Path, *, known: int) -> Data:
    """Loads 100 classes of Tiny ImageNet at 24 x 24; the old model knows 50 classes or all."""
    images: dict[str, Any] = {"size": 24, "padding": 2}
    return load_images(file, "tiny-imagenet-100", **images, knows=lambda number, _: number % 2 == 0 or known == 100)


def perceptron(width: int) -> nn.Module:
    """Returns a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, FEATURE_DIM))


def convolutions(channels: int, width: float) -> nn.Module:
    """Returns three convolutions, as in the preset omniglot-small."""
    network = build_backbone("small", in_channels=channels, width=width, affine=True, feature_dim=FEATURE_DIM)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


# A run takes most of a minute, so there is one learning rate, the one that nearly all methods chose above.
TINY: dict[str, Any] = {"epochs": 6, "rates": (3e-3,), "scales": (3.0, 5.0, 8.0, 20.0), "weights": (1.0,)}
STUDIES = {
    "clinc150": Study(load_clinc150, lambda: perceptron(256), lambda: perceptron(1024), epochs=20),
    "omniglot": Study(
        load_omniglot,
        lambda: convolutions(1, 1),
        lambda: convolutions(1, 2),
        epochs=20,
        batch_size=64,
        rates=(3e-3, 1e-2, 3e-2),
    ),
    "tiny-imagenet": Study(
        lambda file: load_tiny_imagenet(file, known=50), lambda: convolutions(3, 0.5), lambda: convolutions(3, 1), **TINY
    ),
    "tiny-imagenet-smaller": Study(
        lambda file: load_tiny_imagenet(file, known=100),
        lambda: convolutions(3, 0.25),
        lambda: convolutions(3, 1),
        **TINY,
    ),
}

METHODS = {
    "nn.Linear": ("linear", "new/new"),
    "nn.Linear, Procrustes": ("linear", "procrustes"),
    "nn.Linear, linear map": ("linear", "linear map"),
    "nn.Linear, logits": ("linear", "logits"),
    "cosine": ("cosine", "new/new"),
    "cosine, Procrustes": ("cosine", "procrustes"),
    "cosine, linear map": ("cosine", "linear map"),
    "old rows, new ones learned": ("rows", "new/old"),
    "old rows, old means for new ones": ("rows and means", "new/old"),
    "planned frame": ("planned", "new/old"),
    "old means": ("means", "new/old"),
    "halfway": ("halfway", "new/old"),
    "nearest frame": ("frame", "new/old"),
    "pull": ("pull", "new/old"),
    "old means and pull": ("means and pull", "new/old"),
}
"""By name: what is trained, and the test on validation samples that chooses its setting.

Independent models are chosen for their own gallery (new/new), everything else for the old one. A map needs no training of its own,
but may prefer an independent model with another setting.
"""
FRAMES = {"means": 0.0, "halfway": 0.5, "frame": 1.0, "means and pull": 0.0, "rows and means": 0.0}


class LearnedBesideOld(nn.Module):
    """Cosines with the frozen rows of the old classifier, and with learned rows for the classes it does not know."""

    def __init__(self, rows: Tensor, known: Tensor, scale: float) -> None:
        super().__init__()
        self.frozen, self.scale = nn.Buffer(functional.normalize(rows)), scale
        self.order = nn.Buffer(torch.cat([known.nonzero(), (~known).nonzero()]).flatten().argsort())
        self.learned = nn.Parameter(torch.randn(int((~known).sum()), rows.shape[1]))

    def forward(self, features: Tensor) -> Tensor:
        """Returns the logits, (num_samples, num_classes)."""
        weight = torch.cat([self.frozen, functional.normalize(self.learned)])[self.order]
        return self.scale * functional.linear(functional.normalize(features), weight)


def train(study: Study, data: Data, samples: Samples, model: Classifier, rate: float, seed: int, targets: Tensor | None = None,
          weight: float = 0.0, *, labeled: bool = True) -> Classifier:  # fmt: skip
    """Trains on the labels of samples and toward `targets`, the old embeddings, if given; on `targets` alone unless `labeled`."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4)
    steps = study.epochs * (len(samples.labels) // study.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(study.epochs):
        order = torch.randperm(len(samples.labels), generator=generator)
        for batch in order.split(study.batch_size)[: len(order) // study.batch_size]:
            features = model.backbone(data.prepare(samples.inputs[batch], generator))
            loss = functional.cross_entropy(model.head(features), samples.labels[batch]) if labeled else features.new_zeros(())
            if targets is not None:
                loss = loss + weight * compatibility_loss(features, targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def outputs(data: Data, model: nn.Module, inputs: Tensor) -> Tensor:
    """Returns a model's outputs for all inputs, (num_samples, ...)."""
    return torch.cat([model(data.prepare(part, None)) for part in inputs.split(1000)])


def embeddings(data: Data, model: Classifier, inputs: Tensor) -> Tensor:
    """Returns unit vectors of all inputs, (num_samples, feature_dim)."""
    return functional.normalize(outputs(data, model.backbone, inputs))


def right_neighbors(queries: Tensor, query_labels: Tensor, gallery: Tensor, labels: Tensor) -> Tensor:
    """Returns whether the gallery's nearest vector by cosine has the query's class, bool (num_queries,)."""
    nearest = [(part @ gallery.T).argmax(dim=1) for part in queries.split(500)]
    return labels[torch.cat(nearest)] == query_labels


class OldModel(NamedTuple):
    """The parts of the old model that new models use."""

    model: Classifier
    gallery: Tensor  # its embeddings of all training samples, those of unknown classes included
    means: Tensor  # of these embeddings, (num_classes, feature_dim)


class Bench:
    """Trains and tests everything on one data set."""

    def __init__(self, study: Study, data: Data, old_rate: float | None = None) -> None:
        self.study, self.data, self.old_rate = study, data, old_rate
        self.old_model = cache(self._old_model)

    def samples(self, seed: int) -> Samples:
        """Returns the samples for trials, or for final runs."""
        return self.data.trial if seed == TRIAL_SEED else self.data.final

    def trained_old(self, seed: int, rate: float, head: nn.Module | None = None) -> Classifier:
        """Returns a model trained on the classes that the old one knows; `head`, if given, has rows for all classes."""
        samples = self.samples(seed)
        seen = samples.known[samples.labels]
        numbers = samples.known.cumsum(0) - 1 if head is None else torch.arange(len(samples.known))
        part = samples._replace(inputs=samples.inputs[seen], labels=numbers[samples.labels[seen]])
        torch.manual_seed(seed)
        model = Classifier(self.study.old(), head or nn.Linear(FEATURE_DIM, int(samples.known.sum())))
        return train(self.study, self.data, part, model, rate, seed)

    def _old_model(self, seed: int, rate: float) -> OldModel:
        model, samples = self.trained_old(seed, rate), self.samples(seed)
        gallery = embeddings(self.data, model, samples.inputs)
        means = [gallery[samples.labels == label].mean(dim=0) for label in range(len(samples.known))]
        return OldModel(model, gallery, torch.stack(means))

    def test(self, seed: int, queries: Tensor, gallery: Tensor) -> dict[str, float]:
        """Returns top-1 of all queries, of those from classes unseen by the old model, and of the latter among unseen classes."""
        samples = self.samples(seed)
        correct = right_neighbors(queries, samples.query_labels, gallery, samples.labels)
        found = {"top1": correct}
        unseen, stored = ~samples.known[samples.query_labels], ~samples.known[samples.labels]
        if unseen.any():
            found["top1_unseen"] = correct[unseen]
            new = queries[unseen], samples.query_labels[unseen], gallery[stored], samples.labels[stored]
            found["top1_among_unseen"] = right_neighbors(*new)
        return {name: round(float(each.double().mean()), 6) for name, each in found.items()}

    def tests(self, kind: str, settings: Settings, seed: int) -> Tests:
        """Trains a new model of this kind, or the old one, and tests it."""
        samples, rate, scale = self.samples(seed), settings["rate"], settings.get("scale", 1.0)
        old = self.old_model(seed, rate if self.old_rate is None else self.old_rate)
        gallery, queries = old.gallery, samples.queries
        if kind == "old":
            return {"old/old": self.test(seed, embeddings(self.data, old.model, queries), gallery)}
        torch.manual_seed(seed + 1)
        backbone, num_classes = self.study.new(), len(samples.known)
        head: nn.Module
        found: Tests = {}
        if kind in ("linear", "pull"):
            head = nn.Linear(FEATURE_DIM, num_classes)
        elif kind == "cosine":
            head = CosineHead(FEATURE_DIM, num_classes, scale=scale)
        elif kind == "rows":
            head = LearnedBesideOld(old.model.head.weight.detach(), samples.known, scale)
        elif kind == "planned":
            directions = torch.randn(num_classes, FEATURE_DIM, generator=torch.Generator().manual_seed(seed))
            head = AnchoredHead(directions, frame=1.0, scale=scale)
            planned = self.trained_old(seed, rate, head)
            gallery = embeddings(self.data, planned, samples.inputs)
            found["old/old"] = self.test(seed, embeddings(self.data, planned, queries), gallery)
        else:
            anchors = old.means.clone()
            if kind == "rows and means":
                anchors[samples.known] = old.model.head.weight.detach()
            head = AnchoredHead(anchors, frame=FRAMES[kind], scale=scale)
        model = Classifier(backbone, head)
        toward = old.gallery if kind in ("pull", "means and pull") else None
        train(self.study, self.data, samples, model, rate, seed, toward, settings.get("weight", 1.0), labeled=kind != "pull")
        new_gallery, new_queries = (embeddings(self.data, model, inputs) for inputs in (samples.inputs, queries))
        found["new/old"] = self.test(seed, new_queries, gallery)
        found["new/new"] = self.test(seed, new_queries, new_gallery)
        if kind in ("linear", "cosine"):
            left, _, right = torch.linalg.svd(new_gallery.T @ gallery)
            maps = {"procrustes": left @ right, "linear map": torch.linalg.lstsq(new_gallery, gallery).solution}
            found |= {name: self.test(seed, functional.normalize(new_queries @ each), gallery) for name, each in maps.items()}
        if kind == "linear":
            found["logits"] = self.test(seed, *self._logits(model, old.model, samples))
        return found

    def _logits(self, model: Classifier, old: Classifier, samples: Samples) -> tuple[Tensor, Tensor]:
        """Logits of queries and gallery for the classes that both models know, minus their mean, which softmax ignores."""
        queries, gallery = outputs(self.data, model, samples.queries)[:, samples.known], outputs(self.data, old, samples.inputs)
        return tuple(functional.normalize(each - each.mean(dim=1, keepdim=True)) for each in (queries, gallery))  # type: ignore[return-value]


def grid(kind: str, study: Study, choice: dict[str, Settings]) -> Iterator[Settings]:
    """Returns the settings to try."""
    if kind == "means and pull":  # does the pull add anything to the best head?
        yield from (choice["old means"] | {"weight": weight} for weight in study.weights)
    elif kind in ("old", "linear", "pull"):
        yield from ({"rate": rate} for rate in study.rates)
    else:
        yield from ({"rate": rate, "scale": scale} for rate, scale in product(study.rates, study.scales))


def run(name: str, file: Path) -> None:
    """Creates the record, or completes it."""
    place = RECORDS / f"upgrade-{name}.json"
    study = STUDIES[name]
    data = study.load(file)
    record: dict[str, Any] = {
        "command": f"python -m results.upgrade {name} --data {file.name}",
        "epochs": study.epochs,
        "num_classes": len(data.final.known),
        "num_known": int(data.final.known.sum()),
        "num_gallery": len(data.final.labels),
        "num_queries": len(data.final.query_labels),
        "versions": launch.versions() | ({"wordllama": metadata.version("wordllama")} if name == "clinc150" else {}),
        "commits": [],
        "hardware": launch.hardware(torch.device("cpu"), 1),
        "choice": {},
        "trainings": [],
    }
    if place.exists():
        record = json.loads(place.read_text())
    if (commit := launch.commit()) not in record["commits"]:
        record["commits"].append(commit)  # more than one if it was continued
    bench = Bench(study, data)

    def tested(kind: str, settings: Settings, seed: int) -> Tests:
        asked = {"kind": kind, "settings": settings, "seed": seed}
        for done in record["trainings"]:
            if {key: done[key] for key in asked} == asked:
                return done["tests"]
        tests = bench.tests(kind, settings, seed)
        record["trainings"].append(asked | {"tests": tests})
        write_json(place, record)
        print(kind, settings, seed, {test: f"{100 * found['top1']:.1f}" for test, found in tests.items()}, flush=True)
        return tests

    for method, (kind, test) in {"old": ("old", "old/old"), **METHODS}.items():
        if kind == "rows and means" and data.final.known.all():
            continue  # there are no new classes
        tried = list(grid(kind, study, record["choice"]))
        record["choice"][method] = tried[0]
        if len(tried) > 1:
            record["choice"][method] = max(tried, key=lambda settings: tested(kind, settings, TRIAL_SEED)[test]["top1"])
        if method == "old":
            bench.old_rate = record["choice"]["old"]["rate"]
    for seed, (method, settings) in product(SEEDS, record["choice"].items()):
        tested("old" if method == "old" else METHODS[method][0], settings, seed)
    write_json(place, record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m results.upgrade", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data", type=Path, required=True)
    wanted = parser.parse_args()
    run(wanted.study, wanted.data)
