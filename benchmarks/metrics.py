"""How quick the metrics are, as ratios within one run: against the usual script, and against one product features' features.

    OMP_NUM_THREADS=2 python benchmarks/metrics.py

The usual script keeps every sample in a dictionary of lists, one per class, adds up S_W one outer product at a time, takes the
pseudo-inverse of S_B, and computes NC1, NC2, NC3, NC4 and the cosine margins. `measure_collapse` computes these and all others.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.streaming import CollapseMetrics

SIZES = ((50_000, 512, 10), (20_000, 2048, 1000))
REPETITIONS = 5
BATCH_SIZE = 512


def usual_script(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> dict[str, float]:
    num_classes = len(weight)
    samples: dict[int, list[Tensor]] = {}
    for index in range(len(labels)):
        samples.setdefault(int(labels[index]), []).append(features[index])
    means = {c: torch.stack(samples[c]).mean(dim=0) for c in samples}
    centre = features.mean(dim=0)
    within = torch.zeros(features.shape[1], features.shape[1])
    for c, rows in samples.items():
        for row in rows:
            deviation = row - means[c]
            within += torch.outer(deviation, deviation)
    within /= len(labels)
    between = torch.zeros_like(within)
    for mean in means.values():
        between += torch.outer(mean - centre, mean - centre)
    between /= num_classes
    target = (torch.eye(num_classes) - 1 / num_classes) / (num_classes - 1) ** 0.5
    gram = weight @ weight.T
    dual = weight @ torch.stack([means[c] - centre for c in range(num_classes)]).T
    all_means = torch.stack([means[c] for c in range(num_classes)])
    directions = torch.nn.functional.normalize(weight - weight.mean(dim=0), dim=1)
    disagreements, margins = 0, 0.0
    for c, rows in samples.items():
        for row in rows:
            nearest = int((all_means - row).square().sum(dim=1).argmin())
            disagreements += int((weight @ row + bias).argmax()) != nearest
            cosines = directions @ torch.nn.functional.normalize(row - centre, dim=0)
            own = float(cosines[c])
            cosines[c] = -2
            margins += own - float(cosines.max())
    return {
        "nc1": float(torch.trace(within @ torch.linalg.pinv(between))) / num_classes,
        "nc2": float((gram / gram.norm() - target).norm()),
        "nc3": float((dual / dual.norm() - target).norm()),
        "nc4": disagreements / len(labels),
        "mean_cosine_margin": margins / len(labels),
    }


def stream(features: Tensor, labels: Tensor, num_classes: int) -> CollapseMetrics:
    metrics = CollapseMetrics(num_classes, features.shape[1])
    for some_features, some_labels in zip(features.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True):
        metrics.update(some_features, some_labels)
    metrics.compute()
    return metrics


def seconds(run: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {REPETITIONS}; the usual script once")
    for num_samples, feature_dim, num_classes in SIZES:
        generator = torch.Generator().manual_seed(0)
        means = torch.randn(num_classes, feature_dim, generator=generator)
        labels = torch.randint(num_classes, (num_samples,), generator=generator)
        features = means[labels] + torch.randn(num_samples, feature_dim, generator=generator)
        weight, bias = means + torch.randn(num_classes, feature_dim, generator=generator), torch.zeros(num_classes)
        arrays = (features, labels, weight, bias)
        result = measure_collapse(*arrays)
        product = seconds(lambda features=features: features.T @ features)
        ours = seconds(lambda arrays=arrays: measure_collapse(*arrays))
        streamed = seconds(lambda features=features, labels=labels, c=num_classes: stream(features, labels, c))
        start = time.perf_counter()
        usual = usual_script(*arrays)
        script = time.perf_counter() - start
        print(f"\n{num_samples} x {feature_dim}, {num_classes} classes")
        print(f"  usual script            {script:8.2f} s   {script / ours:6.1f} times measure_collapse")
        print(f"  measure_collapse        {ours:8.2f} s   {ours / product:6.2f} times one product features' features")
        print(f"  CollapseMetrics, pass 1 {streamed:8.2f} s   {streamed / product:6.2f} times it, batches of {BATCH_SIZE}")
        print(f"  the product, float32    {product:8.2f} s")
        for name, value in usual.items():
            print(f"  {name:<20} usual {value:.6g}, ours {getattr(result, name):.6g}")


if __name__ == "__main__":
    main()
