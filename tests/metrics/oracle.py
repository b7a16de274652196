"""Slow, obvious formulas in numpy, one sample or one pair at a time, independent of the package."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

Array = npt.NDArray[Any]


def projector(n: int) -> Array:
    return np.eye(n) - np.ones((n, n)) / n


def class_means(features: Array, labels: Array) -> dict[int, Array]:
    return {c: np.mean([h for h, y in zip(features, labels, strict=True) if y == c], axis=0) for c in sorted(set(labels.tolist()))}


def center(features: Array, labels: Array, kind: str) -> Array:
    return features.mean(axis=0) if kind == "samples" else np.mean(list(class_means(features, labels).values()), axis=0)


def covariances(features: Array, labels: Array, kind: str) -> tuple[Array, Array]:
    means, middle = class_means(features, labels), center(features, labels, kind)
    deviations = [h - means[y] for h, y in zip(features, labels.tolist(), strict=True)]
    return mean_outer_product(deviations), mean_outer_product([m - middle for m in means.values()])


def mean_outer_product(rows: list[Array]) -> Array:
    return np.sum([np.outer(row, row) for row in rows], axis=0) / len(rows)


def frame_deviation(gram: Array, feature_dim: int) -> float:
    """The deviation from the projector of rank m on the complement of 1 that has the largest inner product with G."""
    centered, rank = projector(len(gram)), min(feature_dim, len(gram) - 1)
    # Far below all others, so that the direction of 1 is never among the largest.
    lowered = centered @ (gram + gram.T) @ centered - 1e6 * np.linalg.norm(gram) * (np.eye(len(gram)) - centered)
    largest = linalg.eigh(lowered)[1][:, -rank:]
    return float(np.linalg.norm(gram / np.linalg.norm(gram) - largest @ largest.T / np.sqrt(rank)))


def variation(rows: Array) -> float:
    norms = [np.linalg.norm(row) for row in rows]
    return np.std(norms, ddof=1) / np.mean(norms)


def angles(rows: Array) -> float:
    found = []
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            if i != j:
                found.append(abs(a @ b / np.linalg.norm(a) / np.linalg.norm(b) + 1 / (len(rows) - 1)))
    return np.mean(found)


def smallest_angle(rows: Array) -> float:
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for i, a in enumerate(rows) for b in rows[:i]]
    return float(np.degrees(np.arccos(max(cosines))))


def measure(
    features: Array, labels: Array, weight: Array, bias: Array, *, kind: str = "samples", center_weight: bool = False
) -> dict[str, Any]:
    """All class-level and sample-level metrics, by name."""
    feature_dim = weight.shape[1]
    means, middle = class_means(features, labels), center(features, labels, kind)
    rows = np.array([m - middle for m in means.values()])
    present = len(rows)
    within, between = covariances(features, labels, kind)
    used = weight - weight.mean(axis=0) if center_weight else weight
    known = used[list(means)]
    rank = min(present - 1, feature_dim)
    # The pseudoinverse from the full spectrum, truncated at its rank.
    values, vectors = linalg.eigh(between)
    inverse = sum(np.outer(vectors[:, -i], vectors[:, -i]) / values[-i] for i in range(1, rank + 1))
    variance = {c: np.mean([np.sum((h - means[c]) ** 2) for h, y in zip(features, labels, strict=True) if y == c]) for c in means}
    pairs = [(a, b) for a in means for b in means if a != b]
    unit = rows / np.linalg.norm(rows)
    ranks = []
    for c in means:
        values = linalg.svdvals(features[labels == c])
        ranks.append(values.sum() ** 2 / (values**2).sum())
    return {
        "nc1": np.trace(within @ inverse) / present,
        "nc2": frame_deviation(used @ used.T, feature_dim),
        "nc2_means": frame_deviation(rows @ rows.T, feature_dim),
        "nc3": frame_deviation(known @ rows.T, feature_dim),
        "bias_collapse": np.linalg.norm(weight @ middle + bias),
        "weight_equinorm": variation(used),
        "mean_equinorm": variation(rows),
        "equinorm": abs(variation(known) - variation(rows)),
        "weight_equiangularity": angles(used) if len(used) <= feature_dim + 1 else None,
        "mean_equiangularity": angles(rows) if present <= feature_dim + 1 else None,
        "weight_angle": smallest_angle(used),
        "mean_angle": smallest_angle(rows),
        "etf_distance": 2 - 2 * linalg.svdvals(projector(present) @ unit).sum() / np.sqrt(rank),
        "class_margin": min(samples(rows, np.array(list(means)), means, 0 * middle, weight, bias)["cosine_margins"]),
        "cdnv": np.mean([(variance[a] + variance[b]) / 2 / np.sum((means[a] - means[b]) ** 2) for a, b in pairs]),
        "vci": 1 - np.trace(linalg.pinvh(within + between) @ between) / rank,
        "trace_ratio": np.trace(within) / np.trace(between),
        "numerical_rank": np.mean(ranks),
        **samples(features, labels, means, middle, weight, bias),
    }


def samples(features: Array, labels: Array, means: dict[int, Array], middle: Array, weight: Array, bias: Array) -> dict[str, Any]:
    """Metrics of samples, given class means and the global mean."""
    centered = weight - weight.mean(axis=0)
    margins, disagreements, correct, center_correct = [], 0, 0, 0
    for h, y in zip(features, labels.tolist(), strict=True):
        predicted = int(np.argmax(weight @ h + bias))
        nearest = min(means, key=lambda c: np.linalg.norm(h - means[c]))
        disagreements += predicted != nearest
        correct += predicted == y
        center_correct += nearest == y
        cosines = [w @ (h - middle) / np.linalg.norm(w) / np.linalg.norm(h - middle) for w in centered]
        margins.append(cosines[y] - max(c for j, c in enumerate(cosines) if j != y))
    return {
        "nc4": disagreements / len(features),
        "accuracy": correct / len(features),
        "nearest_center_accuracy": center_correct / len(features),
        "mean_cosine_margin": np.mean(margins),
        "cosine_margins": np.sort(margins),
    }
