"""Compares losses of pytorch-metric-learning with heads of this library, on features of a pretrained network.

    python -m results.metric_learning omniglot-lite0.npz

docs/results-fine-tuning.md shows how to make the file of features. Writes `results/records/metric-learning.json` after every run,
and continues an interrupted record. Every method gets the same learning rates and, except for nn.Linear, scales; ArcFaceLoss also
gets two margins. Settings are validated with seed 1000 on one of five drawings of each character. The best setting is trained with
five fresh seeds and tested once: by the largest logit, and by the nearest training embedding.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import ArcFaceLoss, NormalizedSoftmaxLoss
from torch import Tensor, nn

from guided_collapse import Classifier, retrieval
from guided_collapse.experiments import launch
from guided_collapse.experiments.backbones.neck import Neck
from guided_collapse.experiments.data.features import feature_statistics, load_features
from guided_collapse.experiments.data.split import Split, few_of_each, hold_out
from guided_collapse.experiments.files import write_json
from guided_collapse.experiments.heads import build_head
from guided_collapse.experiments.tasks import BACKBONE, HEAD, random_generator
from results.text import NECK, RECORDS, SEEDS, SHARED, TRIAL_SEED, cross_entropy_of, fit

PER_CLASS, EPOCHS = 5, 40
RATES, SCALES, MARGINS = (0.001, 0.003, 0.01, 0.03), (5.0, 10.0, 20.0), (11.5, 28.6)  # margins of ArcFace, in degrees
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "NormalizedSoftmaxLoss": lambda sizes, scale: NormalizedSoftmaxLoss(*sizes, temperature=1 / scale),
    "ArcFaceLoss": lambda sizes, scale, margin: ArcFaceLoss(*sizes, scale=scale, margin=margin),
}
METHODS = ("linear", "cosine", "fixed-etf", "nearest-etf-lagged", *LOSSES)


def settings_of(method: str) -> list[dict[str, float]]:
    """Returns the settings to try for a method."""
    scales = [{}] if method == "linear" else [{"scale": scale} for scale in SCALES]
    margins = [{"margin": margin} for margin in MARGINS] if method == "ArcFaceLoss" else [{}]
    return [{"learning_rate": rate} | scale | margin for rate, scale, margin in product(RATES, scales, margins)]


def tests(method: str, settings: dict[str, float], seed: int, samples: Split, queries: Split) -> dict[str, float]:
    """Trains a method on features normalized as in a run, and returns top-1 by the largest logit and by the nearest embedding."""
    mean, std = feature_statistics(samples.images)  # type: ignore[arg-type]
    samples, queries = (Split((part.images - mean) / std, part.labels) for part in (samples, queries))  # type: ignore[operator]
    rate, *others = settings.values()
    configuration = replace(SHARED, seed=seed, epochs=EPOCHS, learning_rate=rate)
    neck = Neck(in_channels=len(mean), generator=random_generator(seed, BACKBONE), **NECK)
    num_classes = int(samples.labels.max()) + 1
    logits_of: Callable[[Tensor], Tensor]
    if method in LOSSES:
        torch.manual_seed(seed)  # for the weight of the loss
        loss = LOSSES[method]((num_classes, neck.feature_dim), *others)
        fit(nn.ModuleList([neck, loss]), configuration, samples, lambda inputs, labels: loss(neck(inputs), labels))
        logits_of = loss.get_logits  # type: ignore[assignment]
    else:
        configuration = replace(configuration, head=method, **({"scale": others[0]} if others else {}))
        head = build_head(configuration, neck.feature_dim, num_classes, random_generator(seed, HEAD))
        model = Classifier(neck, head)
        fit(model, configuration, samples, cross_entropy_of(model))
        logits_of = head
    with torch.no_grad():
        embeddings, gallery = neck(queries.images), neck(samples.images)
        right = logits_of(embeddings).argmax(dim=1) == queries.labels
    nearest = retrieval(embeddings, queries.labels, gallery, samples.labels).top1
    return {"top1": round(float(right.double().mean()), 6), "nearest": round(nearest, 6)}


def main(file: Path) -> None:
    """Searches the settings of every method, trains it with the best ones, and records the results."""
    place = RECORDS / "metric-learning.json"
    record: dict[str, Any] = {
        "command": f"python -m results.metric_learning {file.name}",
        "versions": launch.versions() | {name: metadata.version(name) for name in ("timm", "pytorch-metric-learning")},
        "commit": launch.commit(),
        "hardware": launch.hardware(torch.device("cpu"), 1),
        "choice": {},
        "trainings": [],
    }
    if place.exists():
        record = json.loads(place.read_text())
    data = load_features(file)
    final = few_of_each(data.train, PER_CLASS), data.test
    held = hold_out(final[0].labels, len(final[0]) // PER_CLASS, seed=None)
    trial = final[0].take(held.train), final[0].take(held.test)

    def run(method: str, settings: dict[str, float], seed: int) -> float:
        asked = {"method": method, "settings": settings, "seed": seed}
        for done in record["trainings"]:
            if {key: done[key] for key in asked} == asked:
                return done["tests"]["top1"]
        found = tests(method, settings, seed, *(trial if seed == TRIAL_SEED else final))
        record["trainings"].append(asked | {"tests": found})
        write_json(place, record)
        print(asked, found, flush=True)
        return found["top1"]

    for method in METHODS:
        record["choice"][method] = max(settings_of(method), key=lambda settings: run(method, settings, TRIAL_SEED))
        for seed in SEEDS:
            run(method, record["choice"][method], seed)
    write_json(place, record)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
