"""Made-up records of runs, in the format in which training writes them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.records import schema
from guided_collapse.experiments.records.schema import (
    CostRecord,
    EpochRecord,
    Failure,
    Hardware,
    HeadCost,
    HeadCounts,
    PeakRates,
    RunFacts,
    Trace,
)

Record = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]

SPEED = {"cosine": 1.0, "fixed-etf": 0.7, "nearest-etf": 2.0, "nearest-etf-detached": 1.7}


def config(experiment: str = "toy", head: str = "cosine", seed: int = 0, **changes: Any) -> Record:
    """The contents of a `config.json`."""
    facts = RunFacts(
        experiment=experiment,
        head=head,
        seed=seed,
        configuration={"epochs": 20, "batch_size": 64, "optimizer": "agd", "backbone": "small", "scale": 5.0},
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
        hardware=Hardware(cpu="Abacus", cores=2, threads=1, devices="cpu", processes=1).to_json(),
        started="2026-01-02T03:04:05",
    )
    return facts.to_json() | changes


def lines(
    head: str = "cosine", seed: int = 0, epochs: int = 20, *, test: bool = True, every: int = 1, num_classes: int = 10
) -> list[Record]:
    """The lines of a `metrics.jsonl`: curves that look like training."""
    generator = np.random.default_rng([seed, len(head)])
    speed = SPEED.get(head, 1.3) * (0.9 + 0.2 * generator.random())
    found = []
    for epoch in range(1, epochs + 1):
        line = EpochRecord(epoch, running={"loss": 9.0, "top1": 0.99}, seconds=float(1 + generator.random()))
        if epoch % every == 0 or epoch == epochs:
            left = float(np.exp(-speed * 8 * epoch / epochs) * (0.9 + 0.2 * generator.random()))
            top1 = round(1 - 0.9 * left, 3)
            ideal = num_classes / (num_classes - 1)
            train = {
                "loss": 0.0342 + 2.2 * left,
                "top1": top1,
                "nc1": 40 * left**2,
                "nc2": 0.0 if head == "fixed-etf" else 0.8 * left,
                "nc2_means": left,
                "nc3": 1.1 * left,
                "nc4": left / 3,
                "equinorm": 0.3 * left,
                "mean_cosine_margin": ideal - 1.4 * left,
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
    centered = np.eye(classes) - 1 / classes
    corners = np.linalg.svd(centered)[0][:, : classes - 1] * np.sqrt(classes / (classes - 1))
    corners = np.pad(corners, ((0, 0), (0, 3 - corners.shape[1])))
    labels = np.repeat(np.arange(classes), samples_per_class)
    noise = generator.normal(size=(len(labels), 3)) * ((np.arange(3) < classes - 1) * 1.0)
    start = generator.normal(size=(classes, 3)) * 0.4
    weights, means, points = [], [], []
    for epoch in epochs:
        done = 1 - np.exp(-3 * epoch / max(epochs))
        weights.append(corners * done + (1 - done) * start[::-1])
        samples = (corners * done + (1 - done) * start)[labels] + noise * 0.5 * (1 - done)
        points.append(samples)
        means.append(np.stack([samples[labels == label].mean(axis=0) for label in range(classes)]))
    made_up = Trace(
        epochs=np.array(epochs),
        classes=np.arange(classes),
        weights=np.array(weights, dtype=np.float32),
        means=np.array(means, dtype=np.float32),
        samples=np.array(points, dtype=np.float32),
        sample_labels=labels,
    )
    return dict(vars(made_up))


def write_run(
    root: Path,
    experiment: str = "toy",
    head: str = "cosine",
    seed: int = 0,
    *,
    folder: str | None = None,
    epochs: int = 20,
    state: str = "finished",
    **options: Any,
) -> Path:
    """Writes a run and returns its folder. Options: lines, margins, trace (arrays or True), every, and fields of `config.json`."""
    place = root / (folder or f"{experiment}/{head}/seed-{seed}")
    place.mkdir(parents=True)
    test = options.get("num_test", 100) > 0
    written = options.pop("lines", None)
    if written is None:
        written = lines(head, seed, epochs, test=test, every=options.pop("every", 1))
    arrays = options.pop("margins", margins(seed, num_test=100 * test))
    picture = options.pop("trace", None)
    if state == "finished":
        options.setdefault("configuration", {**config()["configuration"], "epochs": len(written)})
    (place / schema.CONFIG).write_text(json.dumps(config(experiment, head, seed, **options)))
    (place / schema.METRICS).write_text("".join(json.dumps(line) + "\n" for line in written))
    if state == "finished":
        (place / schema.MODEL).write_bytes(b"never read")
        if arrays is not None:
            np.savez(place / schema.MARGINS, **arrays)
    if state == "failed":
        (place / schema.FAILURE).write_text(json.dumps(Failure("the loss is not finite", "2026-01-02T04:00:00").to_json()))
    if picture is not None:
        np.savez(place / schema.TRACE, **(trace(seed=seed) if picture is True else picture))
    return place


def cost_row(
    head: str,
    forward_ms: float | None,
    backward_ms: float | None,
    head_forward_ms: float | None,
    head_backward_ms: float | None,
    peak_mb: float | None,
    note: str | None = None,
) -> HeadCost:
    """A row of `cost.json`."""
    return HeadCost(head, forward_ms, backward_ms, head_forward_ms, head_backward_ms, peak_mb, 10, note)


def head_counts(head: str = "nearest-etf", device_kind: str = "cpu", solver: str | None = "factors") -> HeadCounts:
    """Counts of `cost.json`: at 20 TFLOP/s and 500 GB/s 0.2 ms for the work, and 0.002 ms for the bytes."""
    return HeadCounts(
        head=head,
        device_kind=device_kind,
        solver=solver,
        operations=250,
        waits=14,
        double_precision=17,
        factorizations=1,
        work=4_000_000_000,
        moved_bytes=1_000_000,
    )


def write_cost(
    folder: Path,
    experiment: str = "toy",
    rows: Sequence[HeadCost] | None = None,
    counts: Sequence[HeadCounts] = (),
    peaks: PeakRates | None = None,
) -> Path:
    """Writes a `cost.json` and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if rows is None:
        rows = [
            cost_row("cosine", 1.25, 2.5, 0.25, 0.5, 12.0),
            cost_row("fixed-etf", 1.5, 2.0, 0.125, 0.375, 11.0),
            cost_row("nearest-etf", 4.0, 6.5, 3.0, 5.0, 30.5, "closed form"),
            cost_row("paper-route", 12345.6, None, 12000.0, None, None, "does not fit"),
        ]
    path = folder / schema.COST
    record = CostRecord(
        experiment=experiment,
        rows=tuple(rows),
        batch_size=256,
        precision="32-true",
        feature_dim=None,
        num_classes=None,
        versions={"torch": "2.13.0"},
        commit=None,
        hardware={"cpu": "Abacus", "cores": 2},
        counts=tuple(counts),
        peaks=peaks,
    )
    path.write_text(json.dumps(record.to_json()))
    return path
