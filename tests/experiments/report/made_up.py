"""Made-up records of runs, in the format in which training writes them."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments import run
from guided_collapse.experiments.files import checksum
from guided_collapse.experiments.records import read_records
from guided_collapse.experiments.report.page import page
from guided_collapse.experiments.report.styles import styles_of
from guided_collapse.experiments.report.summaries import Experiment, by_experiment
from guided_collapse.experiments.report.tables import all_tables
from guided_collapse.experiments.run import EpochRecord, Failure, Finished, RunFacts, records_as_text

Record = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]

SPEED = {"cosine": 1.0, "fixed-etf": 0.7, "nearest-etf": 2.0, "nearest-etf-detached": 1.7}
CONFIGURATION = {"epochs": 20, "batch_size": 64, "optimizer": "agd", "backbone": "small", "scale": 5.0}


def facts(experiment: str = "toy", head: str = "cosine", seed: int = 0, **changes: Any) -> RunFacts:
    """The contents of a `config.json`."""
    made_up = RunFacts(
        experiment=experiment,
        head=head,
        seed=seed,
        configuration=CONFIGURATION,
        protocol="fair",
        protocol_differences=(),
        num_classes=10,
        feature_dim=64,
        num_train=300,
        num_test=100,
        global_batch=64,
        loss_lower_bound=0.0342,
        versions={"guided_collapse": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        commit="0123abc",
        hardware={"cpu": "Abacus", "cores": 2, "threads": 1, "devices": "cpu", "processes": 1},
        started="2026-01-02T03:04:05",
    )
    return replace(made_up, **changes)


def lines(head: str = "cosine", seed: int = 0, epochs: int = 20, *, test: bool = True, every: int = 1) -> list[Record]:
    """The lines of a `metrics.jsonl`: curves that look like training."""
    generator = np.random.default_rng([seed, len(head)])
    speed = SPEED.get(head, 1.3) * (0.9 + 0.2 * generator.random())
    found = []
    for epoch in range(1, epochs + 1):
        line = EpochRecord(epoch, running={"loss": 9.0, "top1": 0.99}, seconds=float(1 + generator.random()))
        if epoch % every == 0 or epoch == epochs:
            left = float(np.exp(-speed * 8 * epoch / epochs) * (0.9 + 0.2 * generator.random()))
            top1 = round(1 - 0.9 * left, 3)
            train = {
                "loss": 0.0342 + 2.2 * left,
                "top1": top1,
                "nc1": 40 * left**2,
                "nc1_normalized": 30 * left**2,
                "nc2": 0.0 if head == "fixed-etf" else 0.8 * left,
                "nc2_means": left,
                "nc3": 1.1 * left,
                "nc4": left / 3,
                "equinorm": 0.3 * left,
                "mean_cosine_margin": 10 / 9 - 1.4 * left,
                "nearest_center_accuracy": top1,
            }
            on_test = {"loss": 0.3 + 2 * left, "top1": 0.85 * top1, "nc4": left / 2, "mean_cosine_margin": 0.8}
            line = replace(line, train=train, test=on_test if test else None)
        found.append(line.to_json())
    return found


def margins(seed: int = 0, num_train: int = 300, num_test: int = 100) -> Arrays:
    """The arrays of a `margins.npz`."""
    generator = np.random.default_rng(seed)
    found: Arrays = {"train": np.sort(generator.beta(8, 1, num_train) * 1.6 - 0.5).astype(np.float32)}
    if num_test:
        found["test"] = np.sort(generator.beta(4, 1, num_test) * 1.6 - 0.5).astype(np.float32)
    return found


def trace(epochs: Sequence[int] = (1, 5, 10, 20), classes: int = 4, samples_per_class: int = 10, seed: int = 0) -> Arrays:
    """The arrays of a `trace.npz`: samples that fall onto the corners of a simplex."""
    generator = np.random.default_rng(seed)
    corners = np.linalg.svd(np.eye(classes) - 1 / classes)[0][:, : classes - 1] * np.sqrt(classes / (classes - 1))
    corners = np.pad(corners, ((0, 0), (0, 3 - corners.shape[1])))
    labels = np.repeat(np.arange(classes), samples_per_class)
    noise = generator.normal(size=(len(labels), 3)) * ((np.arange(3) < classes - 1) * 1.0)
    start = generator.normal(size=(classes, 3)) * 0.4
    left = np.exp(-3 * np.array(epochs) / max(epochs))[:, None, None]
    weights = corners * (1 - left) + left * start[::-1]
    samples = (corners * (1 - left) + left * start)[:, labels] + noise * 0.5 * left
    means = samples.reshape(len(epochs), classes, samples_per_class, 3).mean(axis=2)
    moments = {name: array.astype(np.float32) for name, array in (("weights", weights), ("means", means), ("samples", samples))}
    return {"epochs": np.array(epochs), "classes": np.arange(classes), **moments, "sample_labels": labels}


def write_run(
    root: Path, experiment: str = "toy", head: str = "cosine", seed: int = 0, *, state: str = "finished", **options: Any
) -> Path:
    """Writes a run and returns its folder.

    Options: folder, epochs, lines, every, margins, trace (arrays or True), error, and fields of `config.json`.
    """
    place = root / (options.pop("folder", None) or f"{experiment}/{head}/seed-{seed}")
    place.mkdir(parents=True)
    test = options.get("num_test", 100) > 0
    made_up = lines(head, seed, options.pop("epochs", 20), test=test, every=options.pop("every", 1))
    written = options.pop("lines", made_up)
    arrays, picture = options.pop("margins", margins(seed, num_test=100 * test)), options.pop("trace", None)
    files = {run.METRICS: records_as_text(EpochRecord(**line) for line in written).encode()}
    if arrays is not None and state == "finished":
        files[run.MARGINS] = _npz(arrays)
    if picture is not None:
        files[run.TRACE] = _npz(trace(seed=seed) if picture is True else picture)
    failure = Failure(options.pop("error", "the loss is not finite"), "2026-01-02T04:00:00")
    if state == "finished":
        options.setdefault("configuration", {**CONFIGURATION, "epochs": len(written)})
        options["finished"] = Finished({name: checksum(content) for name, content in files.items()})
    files[run.CONFIG] = facts(experiment, head, seed, **options).as_text().encode()
    if state == "failed":
        files[run.FAILURE] = json.dumps(asdict(failure)).encode()
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


def write_runs(root: Path, written: Mapping[tuple[str, int], Sequence[Record]]) -> None:
    """Writes a run with these lines for each head and seed."""
    for (head, seed), found in written.items():
        write_run(root, head=head, seed=seed, lines=found)


def experiments(folder: Path) -> list[Experiment]:
    """Returns the experiments that a report finds in a folder."""
    return by_experiment(read_records([folder]).runs)


def page_of(folder: Path, epochs: Sequence[int] = (5, 20)) -> str:
    """The page of the runs in a folder."""
    records = read_records([folder])
    found = by_experiment(records.runs)
    return page(records, found, all_tables(found, epochs), styles_of(run.head for run in records.runs))


def _npz(arrays: Arrays) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()
